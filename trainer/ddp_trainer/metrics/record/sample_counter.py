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
