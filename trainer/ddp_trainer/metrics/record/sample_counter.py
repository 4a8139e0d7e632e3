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


INTAKE: Final = "_ddp_intake"
"""Attribute of a loader's iterator."""


class Intake:
    """What one iterator over a loader has drawn and handed out."""

    __slots__ = ("drawn", "is_over", "is_plain", "is_training", "sampler", "samples")

    def __init__(self) -> None:
        self.samples = 0
        """Handed out, and in no step yet."""
        self.is_training = False
        """Whether samples of it were in a step."""
        self.is_plain = False
        """Whether its batches are as large as what was drawn for them."""
        self.is_over = False
        """Whether nothing is left of it."""
        self.drawn: deque[int] = deque()
        """Sizes of the batches that were drawn, and not handed out yet."""
        self.sampler: Any = None
        """Where they were drawn."""

    def drew(self, sampler: Any, index: Any) -> None:
        """The indices of a batch were drawn; ``sampler`` is another one in each pass of an iterator that goes on."""
        if sampler is not self.sampler:
            self.sampler = sampler
            self.drawn.clear()
            self.is_over = False
        self.drawn.append(len(index) if isinstance(index, list | tuple) else 0)

    def handed_out(self, batch: Any, *, is_stream: bool) -> None:
        """A batch goes to the script."""
        drawn = self.drawn.popleft() if self.drawn else 0
        self.is_plain = drawn > 0 and not is_stream
        if self.is_plain:
            self.samples += drawn
            return
        size = size_of(batch) or drawn or 1
        self.samples += min(size, drawn) if drawn else size

    def ended(self) -> None:
        """Nothing is left; what no step came after was no training, but an evaluation."""
        self.is_over = True
        if not self.is_training:
            self.samples = 0

    def take(self) -> int:
        """What goes into the step that ends now."""
        samples, self.samples = self.samples, 0
        self.is_training = self.is_training or samples > 0
        return samples


def intake_of(iterator: Any) -> Intake:
    """What is known of a loader's iterator; kept with it, so that it ends with it."""
    # Its ``__dict__`` is not asked for: to have one made slows all that torch does with the iterator.
    intake: Intake | None = getattr(iterator, INTAKE, None)
    if intake is None:
        intake = Intake()
        setattr(iterator, INTAKE, intake)
    return intake
