"""Host memory for copies from a GPU, page-locked, and copying of host memory by several threads.

``pin_memory=True`` rounds the size up to a power of two (32 GiB for 17 GiB) and caches freed blocks
(``ATen/core/CachingHostAllocator.h``). A growing arena then holds the old and the new block. :func:`host_memory` maps,
touches and registers the pages per request. They return to the kernel with the last tensor that uses them.

torch cuts a copy into as many equal parts as it has threads, and waits for the slowest one. That wait is long when
another process uses one of the cores. ``python -m bench checkpoint`` on two cores: a save of 500 MB blocks training for
54 ms with torch's ``copy_``, and for 31 ms with :func:`copy_all`, whose threads take pieces of work from one queue.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final

import torch
from torch import Tensor

_PORTABLE: Final = 1
"""``cudaHostRegisterPortable``: the pages count as locked for every context of the process."""


class PageLock:
    """Page locks of the CUDA runtime, for one GPU. Not verified on GPUs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def lock(self, address: int, size_bytes: int) -> int:
        """Lock the pages and return the CUDA error code, 0 for success."""
        # A new thread uses GPU 0 by default and would create a context there for every rank of the node.
        with torch.cuda.device(self._device):
            return int(_runtime().cudaHostRegister(address, size_bytes, _PORTABLE))

    def unlock(self, address: int) -> None:
        """Unlock the pages that :meth:`lock` locked at this address."""
        _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call] # torch has no types here


def host_memory(size_bytes: int, locks: PageLock | None) -> Tensor:
    """Return zeroed host memory, rounded up to whole pages.

    Args:
        size_bytes: Size in bytes, at least 1.
        locks: Locks the pages for a device; None leaves them unlocked.

    Returns:
        A uint8 tensor with ``size_bytes`` elements. The pages are unlocked and unmapped with the last tensor that
        shares them. If locking fails, a warning is issued and the memory stays unlocked. Copies from a GPU are then
        slower.
    """
    length = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # The tensor references the array, and the array the mapping, so the array's finalizer runs before the unmapping.
    array = (ctypes.c_ubyte * length).from_buffer(mapping)
    address = ctypes.addressof(array)
    memory = torch.frombuffer(array, dtype=torch.uint8)[:size_bytes]
    memory.zero_()
    if locks is not None:
        if error := locks.lock(address, length):
            warnings.warn(
                f"CUDA did not lock {size_bytes >> 20} MiB of host memory for checkpoints (error {error}); each save "
                "blocks training longer",
                stacklevel=2,
            )
        else:
            weakref.finalize(array, locks.unlock, address).atexit = False  # the driver unlocks at process exit
    return memory


_PIECE_BYTES: Final = 16 << 20
"""Size of one piece: large enough for writes that bypass the CPU caches, small enough to keep the last wait short."""

_Piece = tuple[int, int, int]
"""Destination address, source address, number of bytes."""


def copy_all(pairs: Sequence[tuple[Tensor, Tensor]], threads: int) -> None:
    """Copy the second tensor of each pair into the first.

    Args:
        pairs: (target, source) CPU tensors. Both are contiguous, have the same number of bytes, and do not overlap.
        threads: Maximum number of threads, including the caller.
    """
    pieces = deque(_pieces(pairs))
    others: list[threading.Thread] = []
    try:
        with suppress(RuntimeError):  # no more threads available: use those that have started
            for _ in range(min(threads, len(pieces)) - 1):
                other = threading.Thread(target=_copy, args=(pieces,), name="ddp-copy", daemon=True)
                other.start()
                others.append(other)
        _copy(pieces)
    finally:
        # Also if a signal handler has raised: after the return no thread may write to this memory.
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
            ctypes.memmove(*pieces.popleft())  # a call into C that releases the GIL
