"""Where the time of a step goes: a stopwatch that never stops, so that the parts add up to the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from ddp_trainer.common.constants import JobTime, Phase, Section, Wait
from ddp_trainer.process.recorder import SECTION_NUMBERS, Marks, RankRecorder

NEXT: Final = {
    Phase.DATA_WAIT: SECTION_NUMBERS[Section.FORWARD],
    Phase.HOST_TO_DEVICE: SECTION_NUMBERS[Section.FORWARD],
    Phase.FORWARD: SECTION_NUMBERS[Section.BACKWARD],
    Phase.BACKWARD: SECTION_NUMBERS[Section.BACKWARD],
    Phase.COMM_EXPOSED: SECTION_NUMBERS[Section.OPTIMIZER],
    Phase.OPTIMIZER: SECTION_NUMBERS[Section.DATA],
    Phase.CHECKPOINT: SECTION_NUMBERS[Section.DATA],
    Phase.OTHER: SECTION_NUMBERS[Section.DATA],
}
"""What a rank is about when a phase has ended. After a backward pass it waits for the other ranks, or fetches the data
of its next shard; whoever waits is told from whoever is waited for by the collectives they are in."""

BESIDE_STEPS: Final = (JobTime.DATA_WAIT, JobTime.CHECKPOINT_SAVE, JobTime.EVAL)
"""What the time of training goes into that is not spent on steps themselves."""

_NOTHING: Final = dict.fromkeys(Phase, 0.0)


class StepTimer:
    """Seconds per phase since the last step was reported."""

    def __init__(self, clock: Callable[[], float], marks: Marks | None = None) -> None:
        """``clock`` is a monotonic one, and ``marks`` is where the launcher looks for what this rank is about."""
        self._marks: Marks = [0.0, 0.0] if marks is None else marks
        self._clock = clock
        self._last = clock()
        self._seconds = _NOTHING.copy()
        self._waited = self._saved = self._evaluated = 0.0
        self._waits: dict[Wait, float] = {}
        self._known: Callable[[], Iterable[tuple[Wait, float]]] = tuple
        self._is_in_step = False

    @property
    def now(self) -> float:
        """By the clock of all that is measured here."""
        return self._clock()

    @property
    def is_in_step(self) -> bool:
        """What is waited for now belongs to a step."""
        return self._is_in_step

    def expect(self, waits: Iterable[Wait], known: Callable[[], Iterable[tuple[Wait, float]]] = tuple) -> None:
        """From now on this is told of steps: how long this rank waited for others, and for what.

        ``known`` gives, when a step is reported, seconds of waits by another clock, which are no part of any phase.
        """
        self._waits = dict.fromkeys(waits, 0.0)
        self._known = known

    def waited(self, wait: Wait, seconds: float) -> None:
        """Since the last lap, this rank waited so long: that is no part of what it was about. In a step alone."""
        if self._is_in_step:
            self._waits[wait] += seconds
            self._seconds[Phase.COMM_EXPOSED] += seconds
            self._last += seconds

    def lap(self, phase: Phase) -> None:
        """The time since the last lap belongs to ``phase``."""
        now = self._clock()
        self._seconds[phase] += now - self._last
        self._last = now
        self._is_in_step = True
        self._marks[0] = NEXT[phase]
        self._marks[1] = now

    def evaluated(self) -> None:
        """The time since the last lap went into an evaluation."""
        before = self._last
        self.lap(Phase.OTHER)
        self._evaluated += self._last - before

    @property
    def spent_beside_steps(self) -> tuple[float, float, float]:
        """Seconds of this process's training so far, in the order of :data:`BESIDE_STEPS`."""
        seconds = self._seconds
        return self._waited + seconds[Phase.DATA_WAIT], self._saved + seconds[Phase.CHECKPOINT], self._evaluated

    def enter(self, section: Section | None) -> None:
        """From now on this rank is about ``section``, which is no part of a step; None: nobody is to wait for it."""
        self._is_in_step = section is Section.DATA
        self._marks[1] = self._clock()
        self._marks[0] = 0.0 if section is None else SECTION_NUMBERS[section]

    def spent(self, *phases: Phase) -> float:
        """Seconds of these phases in the step under way, up to the last lap."""
        return sum(self._seconds[phase] for phase in phases)

    def restart(self) -> None:
        """Training begins now: what was before belongs to no step."""
        self._last = self._clock()
        self.enter(Section.DATA)

    def report(self, recorder: RankRecorder, *, step: int, epoch: int, samples: int) -> float:
        """The step was committed: hand its phases on and begin the next; seconds of the step."""
        self.lap(Phase.OTHER)
        spent = self._seconds
        recorder.step(
            step,
            epoch,
            samples,
            spent[Phase.DATA_WAIT],
            spent[Phase.HOST_TO_DEVICE],
            spent[Phase.FORWARD],
            spent[Phase.BACKWARD],
            spent[Phase.COMM_EXPOSED],
            spent[Phase.OPTIMIZER],
            spent[Phase.CHECKPOINT],
            spent[Phase.OTHER],
        )
        total = sum(spent.values())
        self._waited += spent[Phase.DATA_WAIT]
        self._saved += spent[Phase.CHECKPOINT]
        self._seconds = _NOTHING.copy()
        if self._waits:
            for wait, seconds in self._known():
                self._waits[wait] += seconds
            recorder.waited(self._waits)
            self._waits = dict.fromkeys(self._waits, 0.0)
        return total
