"""Copy of the training state in preallocated memory, from which a checkpoint is written.

:class:`Snapshot` reserves the memory when the run starts, so a save blocks training only while tensors are copied. The
kernel assigns pages at the first write, which makes a first copy into new memory take ten times as long as later ones.
There is memory for one snapshot, so a second save waits until the first is written.

:class:`Writing` writes one checkpoint in the training thread or in a background thread. It uses a thread instead of a
process: writing, hashing and syncing release the GIL, and a thread cannot outlive the training. A background write
costs the steps not the GIL but a core: torch splits an operation over all cores and waits for the slowest part. A
thread that holds one core for a scheduler slice thus delays all cores, so the background thread lowers its priority.
Measured with two threads computing steps of 0.50 ms on two cores, during a write of 500 MB. At equal priority, a step
took 1.85 ms (1.34 ms with a separate process). At the lower priority, it took 0.53 ms (process: 0.55 ms), and the write
took 0.9 s instead of 0.7 s. ``bench checkpoint`` measures it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import torch
from torch import Tensor, nn

from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.sharded_writer import Write
from ddp_trainer.train.checkpoint.torch_zip_writer import Archive
from ddp_trainer.train.utils.host_memory import PageLock, copy_all, host_memory

_NICENESS: Final = 10
"""Added to the thread's nice value. It gives a tenth of an equal share when every core is busy. At the lowest priority,
the write could starve, and the next save would wait for it."""


class Writing:
    """One write of one archive."""

    def __init__(self, write: Write, draft: Manifest, archive: Archive, began: float) -> None:
        """Prepare the write.

        Args:
            write: Writes the archive.
            draft: Manifest without digest and size.
            archive: State to write.
            began: Start of the save, by :func:`time.monotonic`.
        """
        self.step = draft.step
        self.blocking_seconds = 0.0
        """Time that training has waited for this save so far, in seconds."""
        self.error: BaseException | None = None
        """Error of the write; None if there is none."""
        self.size_bytes = 0
        """Size of all files of the checkpoint, in bytes, once it is durable."""
        self.seconds = 0.0
        """Time from the start of the save to the end of the write, in seconds."""
        self._began = began
        self._work: Callable[[], Manifest] | None = lambda: write(draft, archive)
        self._thread: threading.Thread | None = None

    @property
    def is_over(self) -> bool:
        """True once the checkpoint is durable or has failed."""
        return self._thread is None or not self._thread.is_alive()

    def start(self) -> None:
        """Write in a background thread."""
        self._thread = threading.Thread(target=self._run_low_priority, name="ddp-checkpoint", daemon=True)
        self._thread.start()

    def _run_low_priority(self) -> None:
        """Write at a lower priority."""
        lower_thread_priority()
        self.run()

    def run(self) -> None:
        """Write in this thread; an error is stored for the training thread."""
        assert self._work is not None  # noqa: S101 - written once
        try:
            self.size_bytes = self._work().total_bytes
        except BaseException as err:  # noqa: BLE001 - raised again, or reported, on the thread that trains
            self.error = err
        self.seconds = time.monotonic() - self._began
        # Frees the state, which the archive refers to.
        self._work = None

    def wait(self, timeout_seconds: float | None = None) -> None:
        """Block until the write has ended, or the timeout has passed."""
        if self._thread is not None:
            self._thread.join(timeout_seconds)


def lower_thread_priority() -> None:
    """Lower this thread's priority for good; does nothing except on Linux, which has one per thread."""
    if sys.platform == "linux":
        own = threading.get_native_id()
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + _NICENESS)


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
