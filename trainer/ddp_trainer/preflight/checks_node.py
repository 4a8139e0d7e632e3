"""Checks of one node by itself: shared memory, file limits, GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.contract import Path
from ddp_trainer.preflight.facts import Facts, Report
from ddp_trainer.preflight.finding import Finding, Status

_GIB: Final = 1 << 30
LEAST_SHARED_MEMORY_BYTES: Final = 256 << 20
"""Below it, as with the 64 MiB of a container's default, NCCL on a node of many GPUs finds no space left."""
GOOD_SHARED_MEMORY_BYTES: Final = _GIB
"""NCCL's documentation asks for so much."""
LEAST_OPEN_FILES: Final = 1024
GOOD_OPEN_FILES: Final = 65536


def shared_memory(facts: Facts) -> Iterator[Finding]:
    """Whether /dev/shm holds what NCCL and DataLoader workers put there."""
    for report in facts.reports:
        size, free = report.limits.shared_memory_bytes, report.limits.shared_memory_free_bytes
        if free >= GOOD_SHARED_MEMORY_BYTES:
            continue
        yield Finding(
            check="shared-memory",
            status=Status.FAIL if report.gpus and free < LEAST_SHARED_MEMORY_BYTES else Status.WARN,
            node=report.name,
            message=f"{Path.SHARED_MEMORY} has {free >> 20} of {size >> 20} MiB free; NCCL and data loaders need 1 GiB",
            hint="mount a memory-backed emptyDir there (docker: --shm-size 8g), and remove what dead jobs left in it",
        )


def open_files(facts: Facts) -> Iterator[Finding]:
    """Whether a rank may open a socket to each of its peers, and its data besides."""
    for report in facts.reports:
        limit = report.limits.open_files
        if limit >= GOOD_OPEN_FILES:
            continue
        yield Finding(
            check="open-files",
            status=Status.FAIL if limit < LEAST_OPEN_FILES else Status.WARN,
            node=report.name,
            message=f"a process may open {limit} files; large worlds need {GOOD_OPEN_FILES}",
            hint=f"ulimit -n {GOOD_OPEN_FILES} before the launch, or the container runtime's limit for nofile",
        )


def gpus(facts: Facts) -> Iterator[Finding]:
    """Whether there is a healthy GPU for each worker, and the same kind on all nodes."""
    most = max((len(report.gpus) for report in facts.reports), default=0)
    for report in facts.reports:
        if not report.gpus:
            yield _without_gpus(report, others_have=most > 0)
            continue
        if len(report.gpus) < report.local_world_size:
            yield Finding(
                check="gpus",
                status=Status.FAIL,
                node=report.name,
                message=f"{len(report.gpus)} GPUs for {report.local_world_size} workers",
                hint="lower --nproc-per-node, or look for the missing GPU in the kernel's log (Xid)",
            )
        yield from _unlike(facts, report.name, {gpu.name for gpu in report.gpus})
        for gpu in report.gpus:
            if gpu.uncorrected_errors or gpu.needs_reset:
                trouble = "is to be reset" if gpu.needs_reset else f"had {gpu.uncorrected_errors} uncorrected errors"
                yield Finding(
                    check="gpus",
                    status=Status.FAIL,
                    node=report.name,
                    message=f"GPU {gpu.index} ({gpu.name}) {trouble}",
                    hint="drain the node and reset the GPU: nvidia-smi --gpu-reset; replace it when they come back",
                )


def _without_gpus(report: Report, *, others_have: bool) -> Finding:
    is_expected = not others_have and not report.has_nvidia_smi
    return Finding(
        check="gpus",
        status=Status.SKIP if is_expected else Status.FAIL if others_have else Status.WARN,
        node=report.name,
        message=report.gpu_note,
        hint="" if is_expected else "ask for as many GPUs on every node, and look at nvidia-smi and the kernel's log",
    )


def _unlike(facts: Facts, node: str, kinds: set[str]) -> Iterator[Finding]:
    first = next(report for report in facts.reports if report.gpus)
    others = {gpu.name for gpu in first.gpus}
    if kinds != others:
        yield Finding(
            check="gpus",
            status=Status.WARN,
            node=node,
            message=f"{', '.join(sorted(kinds))} here, {', '.join(sorted(others))} on {first.name}",
            hint="the slowest GPU sets the pace; choose nodes of one kind",
        )
