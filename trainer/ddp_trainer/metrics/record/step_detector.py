"""Detection of a script's steps by its optimizer, and the count of their samples by its data loader.

A step ends with the optimizer's step, and includes everything since the end of the previous one. With several
optimizers, the first that steps counts. If it stops while another continues, that one counts from then on.

Short steps are reported together, because a report costs more than the rest. The bar of ``python -m bench metrics`` for
what the hooks add to a step, 10 us of processor time, depends on it.

A loader that forms batches draws their indices first, and returns as many samples as it drew. The size of a batch is
therefore known, independently of the script's ``collate_fn``. Without indices, as with streams, it is the first
dimension of the first tensor.
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from ddp_trainer.metrics.families.rank_families import STEP_SECONDS

SHORT_SECONDS: Final = STEP_SECONDS[0]
"""Longest duration of a short step in seconds, the first bucket of the histogram."""
REPORT_SECONDS: Final = 0.25
"""Seconds between two reports of short steps."""
OTHER_OPTIMIZER_STEPS: Final = 16
"""Steps of another optimizer, without one of the counted optimizer, after which the other one counts."""


@dataclass(frozen=True, slots=True)
class StepBatch:
    """Steps since the last report. All but the last one are short."""

    steps: int
    last: float
    """Seconds of the last step."""
    samples: int
    waited: float
    """Seconds of waiting for data."""
    computed: float
    """Seconds of forward and backward."""
    optimized: float
    """Seconds of the optimizer."""
    other: float


class StepListener(Protocol):
    """Receiver of the steps."""

    def record_first_batch(self) -> None:
        """Receive the arrival of the first batch."""

    def record_step_number(self, steps: int) -> None:
        """Receive each step at its end, by the number of steps since the last report."""

    def record_steps(self, optimizer: Any, batch: StepBatch) -> int:
        """Receive a report; ``optimizer`` is None if it no longer exists.

        Returns:
            The number of steps after which the next report is due.
        """


class StepDetector:
    """Detector of the steps of one process."""

    def __init__(self, listener: StepListener, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._listener = listener
        self._record_step_number = listener.record_step_number
        self._report_at, self._report_steps = 0.0, 1
        self._mark: float | None = None
        self._ended = self._last = self._waited = self._computed = self._optimized = self._other = 0.0
        self._steps = self._samples = 0
        self._is_fetched = self._is_stepping = False
        self._counted: Callable[[], Any] = lambda: None
        self._other_optimizer: Callable[[], Any] = lambda: None
        self._other_steps = 0

    def record_fetch(self, begun: float, now: float, samples: int, *, is_training: bool) -> None:
        """Record a batch that the script requested at ``begun``. With gradients off it is not for training."""
        mark = self._mark
        if mark is None:
            mark = self._ended = begun  # earlier time belongs to no step
            self._listener.record_first_batch()
        begun = max(begun, mark)  # a nested loader or another thread was recorded meanwhile
        if self._is_fetched:
            self._computed += begun - mark
        else:
            self._other += begun - mark
        self._mark = now
        if is_training:
            self._waited += now - begun
            self._samples += samples
            self._is_fetched = True
        else:
            self._other += now - begun

    def begin_optimizer(self, optimizer: object) -> None:
        """Record the start of an optimizer step. The time before it has computed the gradients."""
        now = self.clock()
        if self._mark is None:
            self._mark = self._ended = now
        self._computed += now - self._mark
        self._mark = now
        counted = self._counted()
        if counted is optimizer:
            self._is_stepping = True
        elif counted is None:
            self._counted, self._is_stepping = weakref.ref(optimizer), True
        else:
            self._count_other_optimizer(optimizer)

    def begin_closure(self) -> None:
        """Record that the optimizer calls the closure that computes its gradients."""
        now = self.clock()
        self._optimized += now - (self._mark or now)
        self._mark = now

    def end_closure(self) -> None:
        """Record that the closure has computed the gradients."""
        now = self.clock()
        self._computed += now - (self._mark or now)
        self._mark = now

    def end_optimizer(self, optimizer: object) -> None:
        """Record the end of an optimizer step. A step that calls the step of its base class counts once."""
        now = self.clock()
        self._optimized += now - (self._mark or now)
        self._mark = now
        if self._is_stepping and self._counted() is optimizer:
            self._is_stepping = self._is_fetched = False
            self._other_steps = 0
            self._steps = steps = self._steps + 1
            self._record_step_number(steps)
            self._last = last = now - self._ended
            self._ended = now
            if steps >= self._report_steps or last > SHORT_SECONDS or now >= self._report_at:
                self.report()

    def report(self) -> None:
        """Report the steps since the last report."""
        if self._steps:
            seconds = (self._waited, self._computed, self._optimized, self._other)
            batch = StepBatch(self._steps, self._last, self._samples, *seconds)
            self._steps = self._samples = 0
            self._waited = self._computed = self._optimized = self._other = 0.0
            self._report_steps = self._listener.record_steps(self._counted(), batch)
            self._report_at = self._ended + REPORT_SECONDS

    def _count_other_optimizer(self, optimizer: object) -> None:
        self.report()
        if self._other_optimizer() is not optimizer:
            if self._other_steps:
                return  # the first of several is enough
            self._other_optimizer = weakref.ref(optimizer)
        self._other_steps += 1
        if self._other_steps >= OTHER_OPTIMIZER_STEPS:
            self._counted, self._other_steps, self._is_stepping = self._other_optimizer, 0, True


DEEPEST: Final = 4
"""Levels of nested containers that are searched for a tensor."""


def size_of(batch: Any, depth: int = DEEPEST) -> int:
    """Return the first dimension of the first object in ``batch`` that has one; 0 if there is none.

    >>> size_of({"inputs": [[1, 2], [3, 4]]}), size_of("text"), size_of(7)
    (0, 0, 0)
    """
    shape = getattr(batch, "shape", None)
    if shape is not None:
        return int(shape[0]) if len(shape) else 0
    if depth and isinstance(batch, Mapping):
        batch = tuple(batch.values())
    if depth and isinstance(batch, tuple | list):
        return next((size for part in batch[:DEEPEST] if (size := size_of(part, depth - 1))), 0)
    return 0


class SampleCounter:
    """Counter of the samples of one pass of a loader's iterator over its data."""

    __slots__ = ("_drawn", "_is_stream", "sampler")

    def __init__(self, sampler: Any, *, is_stream: bool) -> None:
        """Create the counter.

        Args:
            sampler: Iterator over the loader's sampler, a new one in each pass.
            is_stream: True if the data set has no indices.
        """
        self.sampler = sampler
        self._is_stream = is_stream
        self._drawn: deque[int] = deque()

    def record_indices(self, index: Any) -> None:
        """Record the indices of a batch, which is returned later."""
        self._drawn.append(len(index) if isinstance(index, list | tuple) else 0)

    def count(self, batch: Any) -> int:
        """Return the number of samples in the next batch that the script receives."""
        drawn = self._drawn.popleft() if self._drawn else 0
        if drawn and not self._is_stream:
            return drawn
        size = size_of(batch) or drawn or 1
        return min(size, drawn) if drawn else size
