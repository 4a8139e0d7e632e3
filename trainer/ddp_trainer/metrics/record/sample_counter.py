"""Number of samples that a data loader has returned, without inspecting them if possible.

A loader that forms batches draws their indices first, and returns as many samples as it drew. The size of a batch is
therefore known, independently of the script's ``collate_fn``. Without indices, as with streams, it is the first
dimension of the first tensor.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

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
        return next((size for each in batch[:DEEPEST] if (size := size_of(each, depth - 1))), 0)
    return 0


INTAKE: Final = "_ddp_intake"
"""Name of the attribute of a loader's iterator that holds its intake."""


class SampleCounter:
    """Counters of the samples that one loader iterator has drawn and returned."""

    __slots__ = ("drawn", "is_over", "is_plain", "is_training", "sampler", "samples")

    def __init__(self) -> None:
        self.samples = 0
        """Samples returned that are not part of a step yet."""
        self.is_training = False
        """True if samples of the iterator were part of a step."""
        self.is_plain = False
        """True if its batches are as large as the number of indices drawn."""
        self.is_over = False
        """True if the iterator is exhausted."""
        self.drawn: deque[int] = deque()
        """Sizes of the batches drawn but not returned yet."""
        self.sampler: Any = None
        """Iterator over the sampler from which the indices were drawn."""

    def record_indices(self, sampler: Any, index: Any) -> None:
        """Record the indices of a batch. A persistent iterator has a new ``sampler`` in each pass."""
        if sampler is not self.sampler:
            self.sampler = sampler
            self.drawn.clear()
            self.is_over = False
        self.drawn.append(len(index) if isinstance(index, list | tuple) else 0)

    def record_batch(self, batch: Any, *, is_stream: bool) -> None:
        """Record a batch that the script receives."""
        drawn = self.drawn.popleft() if self.drawn else 0
        self.is_plain = drawn > 0 and not is_stream
        if self.is_plain:
            self.samples += drawn
            return
        size = size_of(batch) or drawn or 1
        self.samples += min(size, drawn) if drawn else size

    def ended(self) -> None:
        """Record the end of the iterator. Samples without a following step belong to an evaluation, and are dropped."""
        self.is_over = True
        if not self.is_training:
            self.samples = 0

    def take(self) -> int:
        """Return the samples of the step that ends now, and reset the count."""
        samples, self.samples = self.samples, 0
        self.is_training = self.is_training or samples > 0
        return samples


def get_sample_counter(iterator: Any) -> SampleCounter:
    """Return the intake of a loader's iterator, stored as its attribute so that both end together."""
    # Access to ``__dict__`` would create it, which slows every access of torch to the iterator.
    intake: SampleCounter | None = getattr(iterator, INTAKE, None)
    if intake is None:
        intake = SampleCounter()
        setattr(iterator, INTAKE, intake)
    return intake
