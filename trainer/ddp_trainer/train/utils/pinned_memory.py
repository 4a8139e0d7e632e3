"""Host memory of the requested size, page-locked for copies from a GPU.

``pin_memory=True`` rounds the size up to a power of two (32 GiB for 17 GiB) and caches freed blocks
(``ATen/core/CachingHostAllocator.h``). A growing arena then holds the old and the new block. :func:`host_memory` maps,
touches and registers the pages per request. They return to the kernel with the last tensor that uses them.
"""

from __future__ import annotations

import ctypes
import mmap
import warnings
import weakref
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
