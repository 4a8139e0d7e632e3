"""The state as it was between two steps, in memory that was made ready before it was needed.

A save has to stop the training only while the tensors are copied. The memory for that is taken when the run starts:
the kernel hands pages out when they are first written to, and a first copy into new ones takes ten times as long as
any later one. There is one such memory, so a second save begins when the first is written.
"""

from __future__ import annotations

import threading
from typing import Final

import torch
from torch import Tensor, nn

from ddp_trainer.train.checkpoint.torch_zip_writer import Archive
from ddp_trainer.train.utils.parallel_memcpy import copy_all
from ddp_trainer.train.utils.pinned_memory import CudaPageLocks, PageLocks, host_memory

_SLACK_BYTES: Final = 1 << 16


class Snapshot:
    """Holds one copy of a state at a time."""

    def __init__(self, device: torch.device, locks: PageLocks | None = None) -> None:
        # Pages that the kernel may not move are copied to at the speed of the bus, and without waiting for each.
        self._locks = locks or (CudaPageLocks(device) if device.type == "cuda" else None)
        self._arena = torch.empty(0, dtype=torch.uint8)
        self._growing: threading.Thread | None = None

    @property
    def capacity_bytes(self) -> int:
        """What fits without taking new memory."""
        self._grown()
        return self._arena.numel()

    def reserve(self, size_bytes: int) -> None:
        """Begin to take memory for this much, beside what else happens; :meth:`take` waits for it."""
        self._grown()
        if size_bytes > self._arena.numel():
            self._growing = threading.Thread(target=self._grow, args=(size_bytes,), name="ddp-reserve", daemon=True)
            self._growing.start()

    def take(self, archive: Archive) -> Archive:
        """The same archive, with its storages copied: the originals may change from here on."""
        needed = archive.storage_bytes
        if needed > self.capacity_bytes:
            self._grow(needed)
        copies: list[Tensor] = []
        start = 0
        for storage in archive.storages:
            copies.append(self._arena[start : start + storage.numel()])
            start += storage.numel()
        pairs = list(zip(copies, archive.storages, strict=True))
        for copy, storage in pairs:
            if storage.device.type != "cpu":
                copy.copy_(storage, non_blocking=self._locks is not None)
        # Beside what devices send meanwhile.
        copy_all([pair for pair in pairs if pair[1].device.type == "cpu"], torch.get_num_threads())
        for device in {storage.device for storage in archive.storages if storage.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        return Archive(archive.pickled, copies)

    def _grow(self, size_bytes: int) -> None:
        # The old memory goes before the new one comes.
        self._arena = torch.empty(0, dtype=torch.uint8)
        self._arena = host_memory(size_bytes, self._locks)

    def _grown(self) -> None:
        if self._growing is not None:
            self._growing.join()
            self._growing = None


def state_bytes(model: nn.Module, samples: int, *, here: bool = False) -> int:
    """What the state of a run will hold at most, before its optimizer has taken a step.

    Two values per weight are those of Adam; SGD has one. The rest are counters and the ledger's bit per sample.
    ``here``: of a model that is spread over ranks, what lies on this one.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    size = _bytes_here if here else _bytes
    own = sum(map(size, model.state_dict().values()))
    moments = sum(2 * size(weight) + 64 for weight in weights)
    return own + moments + samples // 8 + _SLACK_BYTES


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _bytes_here(tensor: Tensor) -> int:
    # A DTensor, whose class takes a second to import, knows its piece.
    return 0 if tensor.is_meta else _bytes(getattr(tensor, "_local_tensor", tensor))
