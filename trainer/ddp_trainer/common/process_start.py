"""Start time of this process. Standard library only."""

from __future__ import annotations

import os
import time
from pathlib import Path


def process_start() -> float:
    """Return the Unix time at which this process started. Without ``/proc``, return the current time."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        uptime = float(Path("/proc/uptime").read_text(encoding="utf-8").split()[0])
        return time.time() - uptime + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return time.time()
