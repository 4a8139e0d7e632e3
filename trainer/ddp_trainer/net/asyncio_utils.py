"""Helpers for asyncio that avoid tracebacks about signals and lost connections, and calls that may block forever in
threads that never delay the end of the process. Standard library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine like :func:`asyncio.run`, and return its result.

    A closing loop closes the pipe for signals before it removes its signal handlers. A signal in between, for example
    from an ending child, prints a traceback. Therefore signals are not written to the pipe after ``main`` has ended.
    The handlers, which only write to the pipe, stay until the loop removes them.
    """
    with asyncio.Runner() as runner:
        try:
            return runner.run(main)
        finally:
            signal.set_wakeup_fd(-1)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close a connection without waiting for its peer.

    asyncio stores why a connection broke, and prints a traceback if that result is never awaited.
    """
    is_lost = writer.is_closing()
    writer.close()
    if is_lost:  # else the peer may take long to read the remaining data
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def tune(connection: socket.socket, timeout: float) -> None:
    """Set a socket to send small messages immediately, and to fail on data unacknowledged for ``timeout`` seconds."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout * 1000))


def run_in_daemon_thread(call: Callable[[], T]) -> Future[T]:
    """Start a call in a daemon thread and return its future, which cannot be cancelled.

    The threads of an executor would delay the end of the process.
    """
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(call())
        except Exception as error:  # noqa: BLE001 - raised where the result is read
            answer.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return answer
