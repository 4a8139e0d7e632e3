"""What Ctrl-C does: the first one is an exception, which commands may answer; a second one ends the process at once.

Python's own way raises the exception again, in whatever is tidied up just then, and prints a traceback there.
"""

from __future__ import annotations

import signal
from types import FrameType


def install_interrupt_handler() -> None:
    """Take Ctrl-C over, unless the caller has it ignored, as shells do for what they run in the background."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _first)


def restore_default_handler() -> None:
    """From now on there is nothing left that would answer: no exception any more."""
    if signal.getsignal(signal.SIGINT) is _first:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def _first(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise KeyboardInterrupt
