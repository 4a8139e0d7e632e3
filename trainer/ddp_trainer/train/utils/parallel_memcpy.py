"""Copy memory to memory on the processor: several threads, and whoever is free takes the next piece.

torch cuts a copy into as many equal parts as it has threads, and waits for the slowest; where another process wants one
of the cores, that is a long wait. ``python -m bench checkpoint`` on two cores: a save of 500 MB stopped the training
for 54 ms by torch's ``copy_``, and does for 31 in pieces.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from torch import Tensor

_PIECE_BYTES: Final = 16 << 20
"""Copied at a time: large enough that the processor writes past its caches, small enough to be waited for."""

_Piece = tuple[int, int, int]
"""Address to copy to, address to copy from, bytes."""


def copy_all(pairs: Sequence[tuple[Tensor, Tensor]], threads: int) -> None:
    """Fill the first of each pair with the second: on the CPU, contiguous, of as many bytes, and not overlapping."""
    pieces = deque(_pieces(pairs))
    others: list[threading.Thread] = []
    try:
        with suppress(RuntimeError):  # the system gives no more threads, and a save goes on with those that there are
            for _ in range(min(threads, len(pieces)) - 1):
                other = threading.Thread(target=_copy, args=(pieces,), name="ddp-copy", daemon=True)
                other.start()
                others.append(other)
        _copy(pieces)
    finally:
        # Also where a signal's handler has raised: nobody may write to this memory any more.
        pieces.clear()
        for other in others:
            other.join()


def _pieces(pairs: Iterable[tuple[Tensor, Tensor]]) -> Iterator[_Piece]:
    for target, source in pairs:
        for start in range(0, source.nbytes, _PIECE_BYTES):
            yield target.data_ptr() + start, source.data_ptr() + start, min(_PIECE_BYTES, source.nbytes - start)


def _copy(pieces: deque[_Piece]) -> None:
    with suppress(IndexError):
        while True:
            ctypes.memmove(*pieces.popleft())  # a call into C, beside which other threads run
