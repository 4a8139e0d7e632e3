"""Checks of the kernel limits of each node: shared memory and open files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.constants import Path
from ddp_trainer.preflight.result import Finding, Status
from ddp_trainer.preflight.schema import Facts

_GIB: Final = 1 << 30
LEAST_SHARED_MEMORY_BYTES: Final = 256 << 20
"""Size below which NCCL runs out of space on a node with many GPUs. A container's default is 64 MiB."""
GOOD_SHARED_MEMORY_BYTES: Final = _GIB
"""Size that NCCL's documentation requests."""
LEAST_OPEN_FILES: Final = 1024
GOOD_OPEN_FILES: Final = 65536


def shared_memory(facts: Facts) -> Iterator[Finding]:
    """Check that /dev/shm has room for NCCL and loader workers."""
    for report in facts.reports:
        size, free = report.limits.shared_memory_bytes, report.limits.shared_memory_free_bytes
        if free >= GOOD_SHARED_MEMORY_BYTES:
            continue
        yield Finding(
            Status.FAIL if report.gpus and free < LEAST_SHARED_MEMORY_BYTES else Status.WARN,
            report.name,
            f"{Path.SHARED_MEMORY} has {free >> 20} of {size >> 20} MiB free; NCCL and data loaders need 1 GiB",
            "mount a memory-backed emptyDir there (docker: --shm-size 8g), and remove what dead jobs left in it",
        )


def open_files(facts: Facts) -> Iterator[Finding]:
    """Check that a rank may open a socket to each of its peers, in addition to its data."""
    for report in facts.reports:
        limit = report.limits.open_files
        if limit >= GOOD_OPEN_FILES:
            continue
        yield Finding(
            Status.FAIL if limit < LEAST_OPEN_FILES else Status.WARN,
            report.name,
            f"a process may open {limit} files; large worlds need {GOOD_OPEN_FILES}",
            f"ulimit -n {GOOD_OPEN_FILES} before the launch, or the container runtime's limit for nofile",
        )
