"""Check that the hardware and software of all ranks can produce the same bits.

Different processors and libraries have different kernels.
"""

from __future__ import annotations

import platform
from pathlib import Path

import torch

from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import BadConfig


def hardware_id(device: torch.device) -> str:
    """Return a text with the processor, the torch version and the number of threads.

    Machines with equal texts select the same kernels, so the same work gives the same bits.
    """
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    else:
        where = f"{_processor()} with {torch.backends.cpu.get_cpu_capability()}"
    threads = torch.get_num_threads()
    return f"{where}, torch {torch.__version__} and {threads} thread{'' if threads == 1 else 's'}"


def require_same_hardware(own: str, group: Group) -> None:
    """Refuse a group of unlike machines; every rank must call it.

    Args:
        own: :func:`hardware_id` of this rank.
        group: Process group.

    Raises:
        BadConfig: The hardware of a rank differs from that of rank 0.
    """
    first = group.broadcast(own.encode() if group.rank == 0 else None, source=0).decode()
    unlike = [rank for rank, differs in enumerate(group.gather(int(own != first))) if differs]
    if not unlike:
        return
    theirs = f"rank {group.rank} on {own}" if group.rank in unlike else f"rank {unlike[0]} on something else"
    raise BadConfig(
        f"--level exact cannot give the same bits on unlike machines: rank 0 computes on {first}, {theirs}.",
        hint="Let all ranks run on machines of one kind, or give --level ordered.",
    )


def change(before: str, now: str) -> str | None:
    """Return a warning for a run that resumes on other hardware, or None if it is the same.

    Args:
        before: :func:`hardware_id` from the checkpoint; empty if the checkpoint has none.
        now: :func:`hardware_id` of this rank.
    """
    if before == now:
        return None
    where = f"on {before}" if before else "without --level exact"
    return (
        f"The steps so far were computed {where}, and those from here on {now}: the result will not have the bits of "
        "a run that was computed in one way."
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.machine()
