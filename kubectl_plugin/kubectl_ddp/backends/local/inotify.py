"""Waiting for changes of files and directories, and for the end of processes, without polling.

The standard library does not support inotify, so libc is called directly. If the user's inotify instances are used up,
it polls ten times a second.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from kubectl_ddp.util.concurrency import Stop

_MODIFY, _MOVED_TO, _CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x2, 0x80, 0x100, 0x200, 0x400, 0x800
_MASK: Final = _MODIFY | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF

_FALLBACK_SECONDS: Final = 0.1

_libc = ctypes.CDLL(None, use_errno=True)


@contextlib.contextmanager
def descriptors(pidfd: int | None, stop: Stop | None) -> Iterator[list[int]]:
    """Return descriptors for a :class:`Watch` that become readable when a process ends and when a stop is requested.

    The pidfd is closed with the block.
    """
    with contextlib.ExitStack() as stack:
        found = []
        if pidfd is not None:
            stack.callback(os.close, pidfd)
            found.append(pidfd)
        if stop is not None:
            event = os.eventfd(0, os.EFD_CLOEXEC)
            stack.callback(os.close, event)
            stack.enter_context(stop.call_on_stop(lambda: os.eventfd_write(event, 1)))
            found.append(event)
        yield found


class Watch:
    """Watcher of paths and descriptors, such as a pidfd. Close it, or use it as a context manager."""

    def __init__(self, paths: Iterable[Path], descriptors: Iterable[int] = ()) -> None:
        self._poll = select.poll()
        self._inotify = _libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._is_blind = self._inotify < 0
        if not self._is_blind:
            self._poll.register(self._inotify, select.POLLIN)
        for path in paths:
            self.add(path)
        self._descriptors = list(descriptors)
        for descriptor in self._descriptors:
            self._poll.register(descriptor, select.POLLIN)

    def add(self, path: Path) -> None:
        """Watch one more path."""
        if self._is_blind or _libc.inotify_add_watch(self._inotify, os.fsencode(path), _MASK) < 0:
            self._is_blind = True

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until a change (True) or the timeout (False); spurious wake-ups are possible."""
        limit = min(_FALLBACK_SECONDS, timeout or _FALLBACK_SECONDS) if self._is_blind else timeout
        ready = self._poll.poll(None if limit is None else max(0.0, limit) * 1000)
        for descriptor, _ in ready:
            if descriptor == self._inotify:
                with contextlib.suppress(BlockingIOError):
                    os.read(self._inotify, 1 << 16)
            else:
                self._poll.unregister(descriptor)  # it stays readable: report it only once
        return bool(ready) or self._is_blind

    def close(self) -> None:
        """Close the inotify descriptor; descriptors passed in stay open."""
        if self._inotify >= 0:
            os.close(self._inotify)
            self._inotify = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
