"""How many samples a data loader has handed out, without a look at what they are where that can be helped.

A loader that makes batches draws their indices first, and has drawn as many as it hands out: so the size of a batch is
known whatever the script's own ``collate_fn`` makes of it. Where there are no indices, as of streams, the first
dimension of the first tensor is taken for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any, Final

DEEPEST: Final = 4
"""Containers in containers that are looked into for a tensor."""


def size_of(batch: Any, depth: int = DEEPEST) -> int:
    """First dimension of the first thing in ``batch`` that has one; 0 where nothing has.

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


class Intake:
    """What one iterator over a loader has drawn and handed out."""

    __slots__ = ("_drawn", "_of", "is_training", "samples")

    def __init__(self) -> None:
        self.samples = 0
        """Handed out, and in no step yet."""
        self.is_training = False
        """Whether samples of it were in a step."""
        self._of: Any = None
        self._drawn: deque[int] = deque()

    def drew(self, sampler: Any, index: Any) -> None:
        """The indices of a batch were drawn; ``sampler`` is another one in each pass of an iterator that goes on."""
        if sampler is not self._of:
            self._of = sampler
            self._drawn.clear()
        self._drawn.append(len(index) if isinstance(index, list | tuple) else 0)

    def handed_out(self, batch: Any, *, is_stream: bool) -> None:
        """A batch goes to the script."""
        drawn = self._drawn.popleft() if self._drawn else 0
        if drawn and not is_stream:
            self.samples += drawn
            return
        size = size_of(batch) or drawn or 1
        self.samples += min(size, drawn) if drawn else size

    def ended(self) -> None:
        """Nothing is left; what no step came after was no training, but an evaluation."""
        if not self.is_training:
            self.samples = 0

    def take(self) -> int:
        """What goes into the step that ends now."""
        samples, self.samples = self.samples, 0
        self.is_training = self.is_training or samples > 0
        return samples
