"""Deferred handling of Ctrl-C during critical sections."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


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
