"""Peak bytes of all live tensors in a process with several threads, as the kernel counts its pages.

Torch's profiler counts byte for byte, but only what its own threads give back: a tensor whose last user was a thread of
gloo would live forever. Here the kernel reports the peak of resident memory,
and the tensors themselves their bytes at the start. That needs an allocator that returns freed memory to the kernel
(:data:`RETURNING`), and a step before, in which code is loaded and pools are filled.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Final

import torch
from torch.distributed.tensor import DTensor

RETURNING: Final = {"MALLOC_MMAP_THRESHOLD_": "65536"}
"""Environment of such a process: glibc maps what is larger by itself, and unmaps it when it is freed."""

_SELF: Final = Path("/proc/self")
_CLEAR_PEAK: Final = "5"
"""Value for ``clear_refs``, proc(5), that resets the peak of the resident set."""


class PeakResidentMemory:
    """Tensors from now on."""

    def __init__(self) -> None:
        (_SELF / "clear_refs").write_text(_CLEAR_PEAK)
        self._held = _tensor_bytes()
        self._before = _status_bytes("VmRSS")

    def peak(self) -> int:
        """The most that tensors took until now, with those that were there before."""
        return _status_bytes("VmHWM") - self._before + self._held


def _tensor_bytes() -> int:
    tensors = [item for item in gc.get_objects() if issubclass(type(item), torch.Tensor)]
    storages = [
        item.untyped_storage() for item in tensors if not issubclass(type(item), DTensor) and item.device.type == "cpu"
    ]
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _status_bytes(field: str) -> int:
    lines = (_SELF / "status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
