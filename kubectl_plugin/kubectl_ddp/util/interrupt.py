"""Handling of Ctrl-C: the first raises KeyboardInterrupt, which commands may catch; the second ends the process.

Python's default handler would raise the exception again, during the cleanup, and print a traceback.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
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


@contextlib.contextmanager
def defer_interrupt() -> Iterator[None]:
    """Delay Ctrl-C to the end of the block, then raise KeyboardInterrupt; a second Ctrl-C interrupts immediately."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python raises KeyboardInterrupt only in the main thread
        return
    came = threading.Event()

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        if came.is_set():
            raise KeyboardInterrupt
        came.set()

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came.is_set():
        raise KeyboardInterrupt
