"""J: how long a snapshot stops the training, against a bare copy into pinned memory, and what memory it takes.

Sizes lie below and above powers of two, since torch's allocator of pinned memory rounds up to one. Then each
snapshot goes to a file and comes back to the device, with its bits.
"""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any, Final

from bench.gpu_checks.check_report import Bench
from ddp_trainer.train.checkpoint.snapshot import Snapshot
from ddp_trainer.train.checkpoint.torch_zip_writer import pack

SIZES: Final = (5, 17)
"""Sizes in units of 10⁹ bytes, in a small check of 10⁷ bytes."""
WARM: Final = 5
STALL_BAR: Final = 1.1
MEMORY_BAR: Final = 1.1
HOST_SHARE: Final = 0.4
"""Share of the host's memory that a state may take; the snapshot and a file need as much again."""
TENSORS: Final = 16
DISK_BYTES_PER_SECOND: Final = 1e9
"""Assumed speed of the disk, to see whether there is time."""
SECONDS_OF_A_SIZE: Final = 12.0


def run(bench: Bench) -> None:
    """Measure each size, then write and read the smallest one."""
    unit = bench.size(10**9, 10**7)
    for size in SIZES:
        name = f"{size}gb" if unit == 10**9 else f"{size}0mb"
        reason = _why_not(bench, size * unit)
        if reason:
            bench.findings.mark_unsupported(name, reason)
        else:
            _measure(bench, name, size * unit)
            _resume(bench, name, size * unit)


def _why_not(bench: Bench, size_bytes: int) -> str:
    if bench.seconds_left < SECONDS_OF_A_SIZE:
        return "the time limit was reached"
    if size_bytes > HOST_SHARE * host_bytes():
        return f"the host has {host_bytes() / 1e9:.0f} GB of memory"
    if bench.is_gpu:
        import torch

        if 1.5 * size_bytes > torch.cuda.mem_get_info()[0]:
            return "the GPU has too little free memory"
    return ""


def host_bytes() -> int:
    """Return the memory of the host. Free memory would be too small: a virtual machine may grow while it is used."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def resident_bytes() -> int:
    """Return the memory of this process, that of page-locked mappings too."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:"))


def state_of(bench: Bench, size_bytes: int) -> dict[str, Any]:
    """Return random tensors of so many bytes on the device."""
    import torch

    length = size_bytes // TENSORS // 4
    return {str(number): torch.rand(length, device=bench.device) for number in range(TENSORS)}


def _measure(bench: Bench, name: str, size_bytes: int) -> None:
    import torch

    state = state_of(bench, size_bytes)
    bare = statistics.median(_time_pinned_copies(bench, state))
    before = resident_bytes()
    snapshot = Snapshot(torch.device(bench.device))
    snapshot.reserve(size_bytes)
    stalls = []
    for _ in range(1 + WARM):
        begun = time.perf_counter()
        snapshot.take(pack(state))
        stalls.append(time.perf_counter() - begun)
    taken = resident_bytes() - before
    warm = statistics.median(stalls[1:])
    found = bench.findings
    found.add(f"{name}_first_stall_seconds", stalls[0])
    found.add(f"{name}_warm_stall_seconds", warm)
    found.add(f"{name}_bare_pinned_copy_seconds", bare)
    found.add(f"{name}_host_memory_bytes", taken)
    if bench.is_gpu:
        found.add(f"{name}_pinned_bytes", pinned_bytes())
        found.at_most(f"{name}: warm stall over a bare pinned copy", warm / bare, STALL_BAR)
        found.at_most(f"{name}: memory of the host over the state", taken / size_bytes, MEMORY_BAR)
    del snapshot, state
    if bench.is_gpu:
        torch.cuda.empty_cache()
        empty_pinned_cache()


def _time_pinned_copies(bench: Bench, state: dict[str, Any]) -> list[float]:
    import torch

    pinned = torch.empty(state["0"].numel(), pin_memory=bench.is_gpu)  # one of them is enough, and is soon there
    seconds = []
    for _ in range(1 + WARM):
        begun = time.perf_counter()
        for value in state.values():
            pinned.copy_(value, non_blocking=True)
        if bench.is_gpu:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    del pinned
    if bench.is_gpu:
        empty_pinned_cache()
    return seconds[1:]


def empty_pinned_cache() -> None:
    """Return unused pinned memory to the host if this torch can."""
    import torch

    empty = getattr(torch._C, "_host_emptyCache", None)  # noqa: SLF001 - torch has no public way
    if empty is not None:
        empty()


def pinned_bytes() -> int:
    """Return what torch's allocator of pinned memory holds."""
    import torch

    stats = torch.cuda.host_memory_stats()
    return int(stats.get("allocated_bytes.current", stats.get("active_bytes.current", 0)))


def _resume(bench: Bench, name: str, size_bytes: int) -> None:
    """Write one snapshot, and read it back to the device, if there is time to."""
    import torch

    if bench.seconds_left < 2 * size_bytes / DISK_BYTES_PER_SECOND:
        bench.findings.mark_unsupported(f"{name} written and read", "the time limit was reached")
        return
    state = state_of(bench, size_bytes)
    snapshot = Snapshot(torch.device(bench.device))
    snapshot.reserve(size_bytes)
    file = bench.directory / "state.pt"
    archive = snapshot.take(pack(state))
    with file.open("wb") as stream:
        archive.write_to(stream)
    begun = time.perf_counter()
    loaded = torch.load(file, weights_only=True, mmap=True)
    back = {key: value.to(bench.device) for key, value in loaded.items()}
    if bench.is_gpu:
        torch.cuda.synchronize()
    seconds = time.perf_counter() - begun
    bench.findings.add(f"{name}_resume_bytes_per_second", size_bytes / seconds)
    unlike = sum(not torch.equal(state[key], back[key]) for key in state)
    bench.findings.at_most(f"{name}: tensors with other bits after they were written and read", unlike, 0)
    file.unlink()
