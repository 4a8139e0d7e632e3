"""Limits of the container: size and use of shared memory, and the memory limit."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Final

from ddp_trainer.common import constants

UNLIMITED: Final = 1 << 60
"""Limits from here on mean "no limit": cgroups version 1 reports the largest multiple of a page that it can hold."""


SHARED_MEMORY: Final = Path(constants.Path.SHARED_MEMORY)
CGROUP: Final = Path("/sys/fs/cgroup")


def limits(shared_memory: Path = SHARED_MEMORY, cgroup: Path = CGROUP) -> dict[str, float]:
    """Return the values by metric name; a value that cannot be read is left out."""
    values: dict[str, float] = {}
    with contextlib.suppress(OSError):
        room = os.statvfs(shared_memory)
        values["ddp_shm_size_bytes"] = float(room.f_blocks * room.f_frsize)
        values["ddp_shm_used_bytes"] = float((room.f_blocks - room.f_bfree) * room.f_frsize)
    if (limit := memory_limit(cgroup)) is not None:
        values["ddp_container_memory_limit_bytes"] = limit
    return values


def memory_limit(cgroup: Path = CGROUP) -> float | None:
    """Return the memory limit in bytes; None if there is none or it cannot be read."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        try:
            text = (cgroup / name).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        return float(text) if text.isdecimal() and int(text) < UNLIMITED else None
    return None
