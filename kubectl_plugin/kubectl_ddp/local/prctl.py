"""Two promises that only the Linux kernel can keep: who adopts orphans, and who dies with whom."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36

_libc = ctypes.CDLL(None, use_errno=True)


def set_child_subreaper() -> None:
    """Adopt orphaned descendants, instead of init."""
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def set_parent_death_signal(parent: int) -> None:
    """Ask the kernel to kill the calling process when its parent dies; run between fork and exec."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before we asked
        os._exit(128 + signal.SIGKILL)
