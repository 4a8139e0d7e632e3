"""The agent's ends of the channels to its workers; see :mod:`ddp_trainer.process.worker_protocol`."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from ddp_trainer.process.worker_protocol import Lines, Message, encode


class Channel:
    """One worker's. A worker that says what none of ours would is not listened to any more."""

    def __init__(self, heard: Callable[[Message], None]) -> None:
        """``heard`` is called on the event loop of the caller."""
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._lines = Lines()
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._loop.add_reader(self._ours, self._read)

    def send(self, message: Message) -> None:
        """Say it; a worker that does not listen is found out by what it does not do."""
        with contextlib.suppress(OSError):
            self._ours.send(encode(message))

    def started(self) -> None:
        """The worker has its end."""
        self.theirs.close()

    def close(self) -> None:
        """Read what the worker sent last, and close: the worker is gone."""
        self._read()
        self._loop.remove_reader(self._ours)
        self._ours.close()
        self.theirs.close()

    def _read(self) -> None:
        try:
            data = self._ours.recv(1 << 16)
            messages = self._lines.take(data)
        except BlockingIOError:
            return
        except (OSError, ValueError):
            data, messages = b"", []
        if not data:
            self._loop.remove_reader(self._ours)
        for message in messages:
            self._heard(message)
