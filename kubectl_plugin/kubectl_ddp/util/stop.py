"""Request to threads to stop waiting, so that an abandoned wait or log stream leaves no thread and no connection."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Final

THREAD_END_SECONDS: Final = 2.0
"""Maximum time to wait for threads after a stop. One that still reads from TLS can crash a process that exits."""


class Stop:
    """Request to stop, made by one thread and obeyed by others."""

    def __init__(self) -> None:
        self._requested = threading.Event()
        self._lock = threading.Lock()
        self._wakers: list[Callable[[], None]] = []

    @property
    def is_requested(self) -> bool:
        """True once :meth:`request` was called."""
        return self._requested.is_set()

    def request(self) -> None:
        """Request the stop, and wake every thread that is inside of :meth:`waking` or :meth:`wait`."""
        with self._lock:  # a waker is not called after its block has ended
            self._requested.set()
            for wake in self._wakers:
                wake()

    def wait(self, seconds: float) -> None:
        """Sleep, until the stop at the latest."""
        self._requested.wait(seconds)

    @contextlib.contextmanager
    def waking(self, wake: Callable[[], None]) -> Iterator[None]:
        """Call ``wake`` when the stop is requested inside of the block, or was before. It must not block."""
        with self._lock:
            self._wakers.append(wake)
            if self.is_requested:
                wake()
        try:
            yield
        finally:
            with self._lock:
                self._wakers.remove(wake)
