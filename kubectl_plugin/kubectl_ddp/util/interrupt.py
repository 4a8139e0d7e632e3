"""Handling of Ctrl-C: the first raises KeyboardInterrupt, which commands may catch; the second ends the process.

Python's default handler would raise the exception again, during the cleanup, and print a traceback.
"""

from __future__ import annotations

import signal
from types import FrameType


def install_interrupt_handler() -> None:
    """Install the handler, unless SIGINT is ignored. Shells ignore it for background processes."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _first)


def restore_default_handler() -> None:
    """Restore the system's default action: from now on, Ctrl-C ends the process without an exception."""
    if signal.getsignal(signal.SIGINT) is _first:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _first(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt
