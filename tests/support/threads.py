"""Threads that a piece of code has left behind."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_thread_left() -> Iterator[None]:
    """Every thread that begins inside of the block ends soon after it."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(timeout=20)
        assert not thread.is_alive(), thread
