"""Host memory of exactly the size that is asked for, page-locked where a GPU copies to it.

``pin_memory=True`` rounds up to a power of two, 32 GiB for 17, and keeps a block that was freed for later
(``ATen/core/CachingHostAllocator.h``), so an arena that grows holds both. Here the pages are mapped, touched and
registered with CUDA one by one request, and go back to the kernel with the last tensor in them.
"""

from __future__ import annotations

import ctypes
import mmap
import warnings
import weakref
from typing import Any, Final, Protocol

import torch
from torch import Tensor

_PORTABLE: Final = 1
"""``cudaHostRegisterPortable``: the pages count as locked for every context of the process."""


class PageLocks(Protocol):
    """Locks pages of this process for a device."""

    def lock(self, address: int, size_bytes: int) -> int:
        """Lock the pages; returns the error of CUDA, 0 for none."""

    def unlock(self, address: int) -> None:
        """Undo :meth:`lock`."""


class CudaPageLocks:
    """Page locks of the CUDA runtime, for one GPU. Not proven on GPUs."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def lock(self, address: int, size_bytes: int) -> int:
        """As :class:`PageLocks` has it."""
        # A thread begins on GPU 0, and would open a context there for every rank of the node.
        with torch.cuda.device(self._device):
            return int(_runtime().cudaHostRegister(address, size_bytes, _PORTABLE))

    def unlock(self, address: int) -> None:
        """As :class:`PageLocks` has it."""
        _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call] # of torch


def host_memory(size_bytes: int, locks: PageLocks | None) -> Tensor:
    """Return zeroed host memory, rounded up to whole pages and no further.

    Args:
        size_bytes: At least 1.
        locks: Locks the pages; None to leave them to the kernel.

    Returns:
        A tensor of ``size_bytes`` uint8. The pages are unlocked and unmapped when no tensor shares them any more.
        Where locking fails, the memory is not locked, with a warning: copies from a GPU are slower then.
    """
    length = -(-size_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
    mapping = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # The tensor holds the array and the array the mapping, so that what is tied to the array runs while it is mapped.
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
            weakref.finalize(array, locks.unlock, address).atexit = False  # the driver does it at the end
    return memory
