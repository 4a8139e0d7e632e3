"""Short steps in a row that are counted, and not taken apart.

To take a step apart costs more than to count it, and of a step of a millisecond that would be noticed. So of short
steps some in a row are taken apart, and those that follow make up a *stride*: each is counted as it ends, and its waits
for data are timed, but what it computed is shared out among the phases as in those that were taken apart before.

A stride knows the plainest of loops only: batches of indices from one loader at a time, and one optimizer. It is over
with whatever else is seen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ddp_trainer.metrics.families.rank_families import STEP_SECONDS
from ddp_trainer.metrics.record.sample_counter import INTAKE, Intake

SHORT_SECONDS: Final = STEP_SECONDS[0]
"""The first longer step ends a stride; those before it all belong to the first bucket of the histogram."""
TIMED_STEPS: Final = 4
"""So many short steps in a row are taken apart …"""
STRIDE_SECONDS: Final = 0.25
"""… before those that are not, for so long: 25 of the longest, hundreds of the shortest."""


@dataclass(frozen=True, slots=True)
class StepBudget:
    """What is known as a stride begins."""

    steps: int
    """How many were taken before."""
    unwatched: int
    """How many may be taken before one has to be taken apart."""
    reach: Callable[[float], None]
    """Takes the number of each step as it ends, so that how far a rank has come is never told late."""


@dataclass(frozen=True, slots=True)
class StepBatchResult:
    """A stride that is over: its steps, their samples, and the seconds that they took together."""

    steps: int
    last: float
    """Seconds of the last step, where it was a long one."""
    samples: int
    waited: float
    forward: float
    backward: float
    moved: float
    rest: float


Draw = Callable[[Any], Any]
"""A method of torch's iterators over loaders."""


class StepBatch:
    """What is kept of a stride, and what torch is to call meanwhile.

    Those functions are on the way of every short step, so they call next to nothing of ours; what is no part of a
    stride they leave to ``otherwise``.
    """

    __slots__ = (
        "clock",
        "computed",
        "ended",
        "final",
        "first",
        "intake",
        "is_fetched",
        "is_on",
        "lasted",
        "leader",
        "mark",
        "number",
        "reach",
        "rest",
        "samples",
        "shares",
        "until",
        "waited",
    )

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.is_on = False
        self.is_fetched = False
        """Whether a step has begun, with its first batch."""
        self.intake = Intake()
        """Of the loader that is trained with."""
        self.leader: Callable[[], Any] = lambda: None
        """The optimizer whose steps count; None where it is gone."""
        self.reach: Callable[[float], object] = id
        self.shares = (0.0, 0.0, 0.0)
        self.mark = self.ended = self.until = self.lasted = self.waited = self.computed = self.rest = 0.0
        self.first = self.number = self.final = self.samples = 0

    def begin(
        self,
        leader: Callable[[], Any],
        intake: Intake,
        shares: tuple[float, float, float],
        now: float,
        outlook: StepBudget,
    ) -> None:
        """A step has ended just now, and some that follow are counted only.

        ``shares`` are the seconds of forward, backward and optimizer in those that were taken apart.
        """
        self.leader, self.intake, self.shares, self.reach = leader, intake, shares, outlook.reach
        self.mark = self.ended = now
        self.lasted = self.waited = self.computed = self.rest = 0.0
        self.first = self.number = outlook.steps
        self.final = outlook.steps + outlook.unwatched
        self.until = now + STRIDE_SECONDS
        self.samples = 0
        self.is_fetched = False
        self.is_on = True

    def end(self) -> StepBatchResult:
        """It is over."""
        self.is_on = False
        forward, backward, moved = self.shares
        scale = self.computed / (forward + backward + moved)
        return StepBatchResult(
            steps=self.number - self.first,
            last=self.lasted,
            samples=self.samples,
            waited=self.waited,
            forward=scale * forward,
            backward=scale * backward,
            moved=scale * moved,
            rest=self.rest,
        )

    def takes(self, intake: Intake) -> bool:
        """Whether the stride goes on with a first batch of ``intake``: that of the next pass over the data."""
        if not self.intake.is_over or self.intake.samples or not intake.is_plain:
            return False
        self.intake = intake
        return True

    def fetched(self, begun: float, now: float) -> None:
        """The script has a batch to train with since ``now``, for which it asked at ``begun``."""
        begun = max(begun, self.mark)  # something was heard meanwhile: of a loader within, or of another thread
        if self.is_fetched:
            self.computed += begun - self.mark
        else:
            self.rest += begun - self.mark
            self.is_fetched = True
        self.waited += now - begun
        self.mark = now

    def drawing(self, draw: Draw, otherwise: Callable[[Any, Any], None]) -> Draw:
        """In the place of ``draw``, by which an iterator over a loader draws the indices of a batch."""

        def drawing(iterator: Any) -> Any:
            index = draw(iterator)
            intake = self.intake
            is_own = self.is_on and getattr(iterator, INTAKE, None) is intake and index.__class__ is list
            if is_own and intake.sampler is iterator._sampler_iter:  # noqa: SLF001
                intake.drawn.append(len(index))
            else:
                otherwise(iterator, index)
            return index

        return drawing

    def fetching(
        self,
        fetch: Draw,
        gradients_are_on: Callable[[], bool],
        otherwise: Draw,
        got: Callable[[Any, Any, float], None],
    ) -> Draw:
        """In the place of ``fetch``, by which such an iterator hands out a batch.

        Where the stride was over meanwhile, ``got`` is told of the iterator, the batch, and when it was asked for.
        """
        clock = self.clock

        def fetching(iterator: Any) -> Any:
            intake = getattr(iterator, INTAKE, None)
            if not self.is_on or intake is not self.intake or not gradients_are_on():
                return otherwise(iterator)
            begun = clock()
            try:
                batch = fetch(iterator)
            except StopIteration:
                intake.ended()
                raise
            if not self.is_on:
                got(iterator, batch, begun)
                return batch
            self.fetched(begun, clock())
            if drawn := intake.drawn:
                intake.samples += drawn.popleft()
            return batch

        return fetching

    def stepping(
        self, is_compiling: Callable[[], bool], pause: Callable[[], None], otherwise: Callable[[Any], None]
    ) -> Callable[[Any, Any, Any], None]:
        """To be called after an optimizer's step; ``pause`` ends the stride."""
        clock = self.clock

        def stepped(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            # What is compiled must look as it would without us, and is: this is a constant there.
            if is_compiling():
                return
            if not self.is_on or self.leader() is not optimizer:
                otherwise(optimizer)
                return
            now = clock()
            self.computed += now - self.mark
            self.mark = now
            self.is_fetched = False
            intake = self.intake
            self.samples += intake.samples
            intake.samples = 0
            intake.is_training = True
            self.number = number = self.number + 1
            self.reach(number)
            self.lasted = lasted = now - self.ended
            self.ended = now
            if now >= self.until or number >= self.final or lasted > SHORT_SECONDS:
                pause()

        return stepped
