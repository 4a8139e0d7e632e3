"""Time breakdown of a step.

:class:`StepTimer` measures without gaps, so that the phases add up to the duration of the step. It reports to a
:class:`~ddp_trainer.process.recorder.RankRecorder` and marks the current section for the hang watch of the launcher.

:class:`CommWaits` measures how long a rank with a part of the model waits for other ranks, by kind of wait, on the CPU:
there gloo's collectives block the training thread until they are done. It covers the collectives of ``fully_shard``,
the transfers of a pipeline schedule, and the exchanges of stages before and after it. On a GPU, collectives are queued,
and the host clock does not show the waits of the device. There
:class:`StreamWaits` records events on the stream before and after the waits of pipeline stages. The waits of
``fully_shard`` on a GPU are not measured, because torch offers no hook around them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, Protocol

import torch

from ddp_trainer.common.time_classes import JobTime, Phase, Section, Wait
from ddp_trainer.process.recorder import SECTION_NUMBERS, Marks, RankRecorder


class CommWaits:
    """Timer of waits. It moves them from the other phases of the step to ``comm_exposed``."""

    def __init__(self, phases: StepTimer | None = None) -> None:
        """``phases`` receives the waits; without it, nothing is measured."""
        self._phases = phases
        self._ended = 0.0

    @contextmanager
    def during(self, wait: Wait) -> Iterator[None]:
        """Measure the body of the ``with`` statement as a wait."""
        if self._phases is None:
            yield
            return
        began = self._phases.now
        yield
        self._ended = self._phases.now
        self._phases.record_wait(wait, self._ended - began)

    def extend_wait(self, wait: Wait) -> None:
        """Extend the last wait until now: it has a second part that ends here."""
        if self._phases is not None:
            began, self._ended = self._ended, self._phases.now
            self._phases.record_wait(wait, self._ended - began)


class Mark(Protocol):
    """Point in the work of a GPU, in the form of ``torch.cuda.Event``."""

    def query(self) -> bool:
        """Return True if the GPU has reached this point."""

    def elapsed_time(self, end: Any) -> float:
        """Return the milliseconds from this point to a later one."""


def mark_stream() -> Mark:
    """Record an event on the current CUDA stream, after the work that is queued so far."""
    mark: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call] # torch's
    mark.record()
    return mark  # type: ignore[no-any-return] # as above


class StreamWaits(CommWaits):
    """Timer of the waits of the computing GPU stream, by the clock of the GPU; for pipeline stages only."""

    def __init__(self, phases: StepTimer, mark: Callable[[], Mark] = mark_stream) -> None:
        """``phases`` shows whether a step is running. ``mark`` records an event; the host never waits for it."""
        super().__init__()
        self._in_step, self._mark = phases, mark
        self._marked: deque[tuple[Wait, Mark, Mark]] = deque()

    @contextmanager
    def during(self, wait: Wait) -> Iterator[None]:
        """Record events before and after the body, which makes the stream wait; only within a step."""
        if not self._in_step.is_in_step:
            yield
            return
        began = self._mark()
        yield
        self._marked.append((wait, began, self._mark()))

    def known(self) -> Iterator[tuple[Wait, float]]:
        """Yield the seconds of each finished wait, once. After the vote these are all waits of the step."""
        while self._marked and self._marked[0][2].query():
            wait, began, ended = self._marked.popleft()
            yield wait, began.elapsed_time(ended) / 1e3


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
"""Section that a rank enters when a phase ends.

After a backward pass the rank waits for other ranks or fetches the data of its next slice. The collectives that the
ranks are in show which rank waits for which.
"""

BESIDE_STEPS: Final = (JobTime.DATA_WAIT, JobTime.CHECKPOINT_SAVE, JobTime.EVAL)
"""Kinds of training time that are not spent on steps themselves."""

_NOTHING: Final = dict.fromkeys(Phase, 0.0)
"""Seconds by phase, in the order of :meth:`.RankRecorder.step`."""


class StepTimer:
    """Timer of the phases of a step, in seconds since the last report."""

    def __init__(self, clock: Callable[[], float], marks: Marks | None = None) -> None:
        """``clock`` returns monotonic seconds."""
        self.marks: Marks = [0.0, 0.0] if marks is None else marks
        """Cells from which the launcher reads the current section of this rank."""
        self._clock = clock
        self._last = clock()
        self._seconds = _NOTHING.copy()
        self._waited = self._saved = self._evaluated = 0.0
        self._waits: dict[Wait, float] = {}
        self._known: Callable[[], Iterable[tuple[Wait, float]]] = tuple
        self.is_in_step = False
        """True if a step is running, so that waits count for it."""

    @property
    def now(self) -> float:
        """Current time of the clock, in seconds."""
        return self._clock()

    def expect(self, waits: Iterable[Wait], known: Callable[[], Iterable[tuple[Wait, float]]] = tuple) -> None:
        """Set the kinds of waits for other ranks that are reported with each step.

        Args:
            waits: Kinds of waits.
            known: Called at each report. Returns waits measured by another clock, in seconds, which belong to no phase.
        """
        self._waits = dict.fromkeys(waits, 0.0)
        self._known = known

    def record_wait(self, wait: Wait, seconds: float) -> None:
        """Move ``seconds`` since the last lap from the current phase to ``comm_exposed``; only within a step."""
        if self.is_in_step:
            self._waits[wait] += seconds
            self._seconds[Phase.COMM_EXPOSED] += seconds
            self._last += seconds

    def end_phase(self, phase: Phase) -> None:
        """Add the time since the last lap to ``phase``."""
        now = self._clock()
        self._seconds[phase] += now - self._last
        self._last = now
        self.is_in_step = True
        self.marks[0] = NEXT[phase]
        self.marks[1] = now

    def record_evaluation(self) -> None:
        """Count the time since the last lap as evaluation."""
        before = self._last
        self.end_phase(Phase.OTHER)
        self._evaluated += self._last - before

    @property
    def non_step_seconds(self) -> tuple[float, float, float]:
        """Training time of this process so far, in seconds, in the order of :data:`BESIDE_STEPS`."""
        seconds = self._seconds
        return self._waited + seconds[Phase.DATA_WAIT], self._saved + seconds[Phase.CHECKPOINT], self._evaluated

    def enter(self, section: Section | None) -> None:
        """Mark the current section of this rank.

        Args:
            section: Section outside of steps, or ``DATA`` at the start of a step. None if other ranks do not wait for
                this rank.
        """
        self.is_in_step = section is Section.DATA
        self.marks[1] = self._clock()
        self.marks[0] = 0.0 if section is None else SECTION_NUMBERS[section]

    def phase_seconds(self, *phases: Phase) -> float:
        """Return the seconds of these phases in the current step, up to the last lap."""
        return sum(self._seconds[phase] for phase in phases)

    def restart(self) -> None:
        """Start the first step now; the time before belongs to no step."""
        self._last = self._clock()
        self.enter(Section.DATA)

    def report(self, recorder: RankRecorder, *, step: int, epoch: int, samples: int) -> float:
        """Send the phases of a committed step to the recorder, and start the next step.

        Args:
            recorder: Receiver of the phases and waits.
            step: Number of committed steps.
            epoch: Epoch of the step.
            samples: Samples of this rank in the step.

        Returns:
            Duration of the step, in seconds.
        """
        self.end_phase(Phase.OTHER)
        spent = self._seconds
        recorder.step(step, epoch, samples, *spent.values())
        total = sum(spent.values())
        self._waited += spent[Phase.DATA_WAIT]
        self._saved += spent[Phase.CHECKPOINT]
        self._seconds = _NOTHING.copy()
        if self._waits:
            for wait, seconds in self._known():
                self._waits[wait] += seconds
            recorder.record_wait(self._waits)
            self._waits = dict.fromkeys(self._waits, 0.0)
        return total
