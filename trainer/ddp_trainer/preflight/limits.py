"""Kernel limits of this process: shared memory and open files."""

from __future__ import annotations

import os
import resource

from ddp_trainer.common.constants import Path
from ddp_trainer.preflight.schema import Limits


def limits() -> Limits:
    """Return the present limits."""
    size = free = 0
    try:
        volume = os.statvfs(Path.SHARED_MEMORY)
        size, free = volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
    except OSError:
        pass  # a missing /dev/shm counts as one of size 0
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = 1 << 30
    return Limits(
        shared_memory_bytes=size,
        shared_memory_free_bytes=free,
        open_files=unlimited if soft == resource.RLIM_INFINITY else soft,
    )
