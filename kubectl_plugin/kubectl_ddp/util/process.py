"""This process: its name and location flags, Ctrl-C, and Python's cyclic garbage collector.

Commands that the program suggests repeat its name and flags. The first Ctrl-C raises KeyboardInterrupt, which commands
may catch; the second ends the process. Phases that create many objects without cycles, such as JSON, collect seldom.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import PurePath
from types import FrameType
from typing import Final


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


SELDOM: Final = 50_000
"""Number of surviving new objects after which a collection starts."""


def raise_gc_threshold() -> None:
    """Raise the collection threshold: imports create tens of thousands of objects, and nearly all of them stay."""
    gc.set_threshold(SELDOM)


def freeze_gc() -> None:
    """Exempt all objects from the collections at exit, which take a tenth of the time of a short command."""
    gc.freeze()


@contextmanager
def at_rest() -> Iterator[None]:
    """Disable the cyclic garbage collector inside the block, in all threads. Reference counting still frees objects."""
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_collecting:
            gc.enable()


EXECUTABLE: Final = "kubectl-ddp"

_flags: list[str] = [""]
"""Stack of location flags; the last entry is current. Shared by all threads, because background threads print
suggestions too.
"""
_flags_here: ContextVar[str | None] = ContextVar("location_flags", default=None)
"""Location flags of this thread, which take precedence."""


def program() -> str:
    """Return ``kubectl ddp`` if kubectl started this process, else ``kubectl-ddp``; for usage lines and suggestions."""
    called = PurePath(sys.argv[0]).name if sys.argv else ""
    caller = PurePath(os.environ.get("_", "")).stem
    return "kubectl ddp" if called.startswith("kubectl-") and caller == "kubectl" else EXECUTABLE


@contextmanager
def location_context(flags: str) -> Iterator[None]:
    """Use these location flags, each with a leading space, in suggested commands inside the block."""
    _flags.append(flags)
    try:
        yield
    finally:
        _flags.pop()


@contextmanager
def thread_location(flags: str) -> Iterator[None]:
    """Use these location flags inside the block, in this thread only."""
    before = _flags_here.set(flags)
    try:
        yield
    finally:
        _flags_here.reset(before)


def location_flags() -> str:
    """Return the flags that make a suggested command use the same place.

    >>> with location_context(" -n team"):
    ...     f"{program()} resume digits{location_flags()}"
    'kubectl-ddp resume digits -n team'
    """
    here = _flags_here.get()
    return _flags[-1] if here is None else here
