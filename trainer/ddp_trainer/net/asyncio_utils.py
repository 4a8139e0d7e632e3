"""What asyncio leaves to its users: ending without a word about signals or lost connections; standard library only."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """As :func:`asyncio.run`.

    A loop closes the pipe that signals are written to before it takes its handlers back, and a signal in between,
    as of a child that just then ends, prints a traceback. So signals are no longer written anywhere once ``main`` is
    done; the handlers, which do nothing but write there, stay until the loop takes them back.
    """
    with asyncio.Runner() as runner:
        try:
            return runner.run(main)
        finally:
            signal.set_wakeup_fd(-1)


async def hang_up(writer: asyncio.StreamWriter) -> None:
    """Close the connection; returns at once.

    asyncio keeps why a connection broke for who waits for its end, and prints a traceback of it when nobody does.
    """
    is_lost = writer.is_closing()
    writer.close()
    if is_lost:  # else the peer may take its time to read what is still to be sent
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def tune(connection: socket.socket, timeout: float) -> None:
    """Small messages at once; unacknowledged ones for at most ``timeout`` seconds."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(timeout * 1000))
