"""Copy of the training state in preallocated memory, from which a checkpoint is written.

:class:`Snapshot` reserves the memory when the run starts, so a save blocks training only while tensors are copied. The
kernel assigns pages at the first write, which makes a first copy into new memory take ten times as long as later ones.
There is memory for one snapshot, so a second save waits until the first is written.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Tensor, nn

from ddp_trainer.train.checkpoint.torch_zip_writer import Archive
from ddp_trainer.train.utils.host_memory import PageLock, copy_all, host_memory

_SLACK_BYTES: Final = 1 << 16


class Snapshot:
    """Holds one copy of a state at a time."""

    def __init__(self, device: torch.device, locks: PageLock | None = None) -> None:
        # Copies to page-locked memory run at the speed of the bus and are asynchronous.
        self._locks = locks or (PageLock(device) if device.type == "cuda" else None)
        self._arena = torch.empty(0, dtype=torch.uint8)
        self._growing: threading.Thread | None = None

    @property
    def capacity_bytes(self) -> int:
        """Size of the allocated memory, in bytes; waits for a pending :meth:`reserve`."""
        self._wait_for_growth()
        return self._arena.numel()

    def reserve(self, size_bytes: int) -> None:
        """Start to allocate this many bytes in a thread; :meth:`take` waits for it."""
        self._wait_for_growth()
        if size_bytes > self._arena.numel():
            self._growing = threading.Thread(target=self._resize, args=(size_bytes,), name="ddp-reserve", daemon=True)
            self._growing.start()

    def take(self, archive: Archive) -> Archive:
        """Return the archive with copies of its storages; the originals may change afterwards."""
        needed = archive.storage_bytes
        if needed > self.capacity_bytes:
            self._resize(needed)
        copies: list[Tensor] = []
        start = 0
        for storage in archive.storages:
            copies.append(self._arena[start : start + storage.numel()])
            start += storage.numel()
        pairs = list(zip(copies, archive.storages, strict=True))
        ready = copy_from_gpus([pair for pair in pairs if pair[1].device.type == "cuda"])
        # Runs in parallel to the asynchronous copies from GPUs.
        copy_all([pair for pair in pairs if pair[1].device.type == "cpu"], torch.get_num_threads())
        return Archive(archive.pickled, copies, ready)

    def _resize(self, size_bytes: int) -> None:
        # Free the old memory first, so that both never exist together.
        self._arena = torch.empty(0, dtype=torch.uint8)
        self._arena = host_memory(size_bytes, self._locks)

    def _wait_for_growth(self) -> None:
        if self._growing is not None:
            self._growing.join()
            self._growing = None


def copy_from_gpus(pairs: Sequence[tuple[Tensor, Tensor]]) -> Callable[[], None]:
    """Start to copy from GPUs, on a stream beside the others, and return a function that waits for the copies.

    The host does not wait. The kernels that it launches afterwards do, because they may change the state. Not verified
    on GPUs.

    Args:
        pairs: (host memory, its source on a GPU); page-locked memory is copied asynchronously.
    """
    devices = {source.device for _, source in pairs}
    streams = {device: torch.cuda.Stream(device) for device in devices}  # type: ignore[no-untyped-call] # torch's
    for device, stream in streams.items():
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            for copy, source in pairs:
                if source.device == device:
                    copy.copy_(source, non_blocking=True)
        torch.cuda.current_stream(device).wait_stream(stream)

    def wait() -> None:
        for stream in streams.values():
            stream.synchronize()

    return wait


def state_bytes(model: nn.Module, samples: int, *, here: bool = False) -> int:
    """Return an upper limit of the size of a run's state, in bytes, before the optimizer's first step.

    It assumes two values per weight, as for Adam; SGD has one. The rest are counters and one bit per sample.

    Args:
        model: The model.
        samples: Number of training samples.
        here: Count only this rank's part of a sharded model.
    """
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    size = _bytes_here if here else _bytes
    own = sum(map(size, model.state_dict().values()))
    moments = sum(2 * size(weight) + 64 for weight in weights)
    return own + moments + samples // 8 + _SLACK_BYTES


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _bytes_here(tensor: Tensor) -> int:
    # Duck typing, because the class DTensor takes a second to import.
    return 0 if tensor.is_meta else _bytes(getattr(tensor, "_local_tensor", tensor))
