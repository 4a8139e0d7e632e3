"""Strides: runs of short steps that are counted without timing each phase.

Timing the phases of a step costs more than counting it, which is noticeable in a step of a millisecond. Therefore some
short steps are timed in full, and the steps after them form a *stride*. In a stride, each step is counted when it ends
and its wait for data is timed. Its compute time is divided among the phases as in the timed steps.

A stride handles only the simplest loop: batches of indices from one loader at a time, and one optimizer. Any other
event ends it.

The bar of ``python -m bench metrics`` for what listening adds to a step, 10 us of processor time, depends on it.
Measured on the loop of that benchmark, a step of 0.6 ms, on two busy cores of an AMD EPYC with torch 2.13: 8 to 14 us
with strides, 29 to 31 us without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ddp_trainer.metrics.families.rank_families import STEP_SECONDS
from ddp_trainer.metrics.record.sample_counter import INTAKE, SampleCounter

SHORT_SECONDS: Final = STEP_SECONDS[0]
"""Longest duration of a short step in seconds, the first bucket of the histogram. The first longer step ends a
stride.
"""
TIMED_STEPS: Final = 4
"""Consecutive short steps that are timed in full before a stride."""
STRIDE_SECONDS: Final = 0.25
"""Longest duration of a stride in seconds: 25 of the longest short steps, or hundreds of the shortest."""


@dataclass(frozen=True, slots=True)
class StepBudget:
    """Number of steps at the start of a stride, and its limit."""

    steps: int
    """Steps before the stride."""
    unwatched: int
    """Steps until the next one that must be timed."""
    reach: Callable[[float], None]
    """Called with the number of each step as it ends, so that the rank's step number is never late."""


@dataclass(frozen=True, slots=True)
class StepBatchResult:
    """Steps, samples and seconds of a finished stride, or of a single step."""

    steps: int
    last: float
    """Seconds of the last step, which may be a long one."""
    samples: int
    waited: float
    forward: float
    backward: float
    moved: float
    rest: float


Draw = Callable[[Any], Any]
"""Method of torch's loader iterators."""


class StepBatch:
    """State of a stride, and the wrappers that torch calls during it.

    The wrappers run in every short step, so they do as little as possible. They pass calls from outside of the stride
    to ``otherwise``.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.is_on = False
        self.is_fetched = False
        """True after the first batch of a step."""
        self.intake = SampleCounter()
        """Intake of the training loader."""
        self.leader: Callable[[], Any] = lambda: None
        """Returns the optimizer whose steps count; None if it no longer exists."""
        self.reach: Callable[[float], object] = id
        self.shares = (0.0, 0.0, 0.0)
        self.mark = self.ended = self.until = self.lasted = self.waited = self.computed = self.rest = 0.0
        self.first = self.number = self.final = self.samples = 0

    def begin(
        self,
        leader: Callable[[], Any],
        intake: SampleCounter,
        shares: tuple[float, float, float],
        now: float,
        outlook: StepBudget,
    ) -> None:
        """Start a stride directly after a step.

        Args:
            leader: Returns the optimizer whose steps count.
            intake: Intake of the training loader.
            shares: Seconds of forward, backward and optimizer in the timed steps.
            now: Current time of the clock, in seconds.
            outlook: Step number and limit of the stride.
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
        """End the stride and return its result."""
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

    def takes(self, intake: SampleCounter) -> bool:
        """Return True if the stride continues with ``intake``, the next pass over the data."""
        if not self.intake.is_over or self.intake.samples or not intake.is_plain:
            return False
        self.intake = intake
        return True

    def record_fetch(self, begun: float, now: float) -> None:
        """Record a batch for training.

        Args:
            begun: Time of the request for the batch, in seconds.
            now: Time at which the script received it, in seconds.
        """
        begun = max(begun, self.mark)  # a nested loader or another thread was recorded meanwhile
        if self.is_fetched:
            self.computed += begun - self.mark
        else:
            self.rest += begun - self.mark
            self.is_fetched = True
        self.waited += now - begun
        self.mark = now

    def wrap_draw(self, draw: Draw, otherwise: Callable[[Any, Any], None]) -> Draw:
        """Return a wrapper of ``draw``, the loader iterator's method that draws the indices of a batch."""

        def draw_indices(iterator: Any) -> Any:
            index = draw(iterator)
            intake = self.intake
            is_own = self.is_on and getattr(iterator, INTAKE, None) is intake and index.__class__ is list
            if is_own and intake.sampler is iterator._sampler_iter:  # noqa: SLF001
                intake.drawn.append(len(index))
            else:
                otherwise(iterator, index)
            return index

        return draw_indices

    def wrap_fetch(
        self,
        fetch: Draw,
        gradients_are_on: Callable[[], bool],
        otherwise: Draw,
        got: Callable[[Any, Any, float], None],
    ) -> Draw:
        """Return a wrapper of ``fetch``, the loader iterator's method that returns a batch.

        If the stride ends during the fetch, the wrapper calls ``got`` with the iterator, the batch and the time of the
        request.
        """
        clock = self.clock

        def fetch_batch(iterator: Any) -> Any:
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
            self.record_fetch(begun, clock())
            if drawn := intake.drawn:
                intake.samples += drawn.popleft()
            return batch

        return fetch_batch

    def make_step_hook(
        self, is_compiling: Callable[[], bool], pause: Callable[[], None], otherwise: Callable[[Any], None]
    ) -> Callable[[Any, Any, Any], None]:
        """Return the hook that runs after an optimizer step. It calls ``pause`` to end the stride."""
        clock = self.clock

        def on_optimizer_step(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            # Compiled code must not contain the hook. There, this condition is a constant.
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

        return on_optimizer_step
