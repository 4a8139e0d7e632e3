"""Agent's ends of the channels to its workers. :class:`Channel` sends and receives the messages of
:mod:`ddp_trainer.process.worker_protocol`.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from ddp_trainer.process.worker_protocol import Lines, Message, encode


class Channel:
    """Channel to one worker. After an invalid message, nothing more is read from the worker."""

    def __init__(self, heard: Callable[[Message], None]) -> None:
        """Open the channel; ``heard`` is called for each message, on the event loop of the caller."""
        self._loop = asyncio.get_running_loop()
        self._heard = heard
        self._lines = Lines()
        self._ours, self.theirs = socket.socketpair()
        self._ours.setblocking(False)
        self._loop.add_reader(self._ours, self._read)

    def send(self, message: Message) -> None:
        """Send a message. A failure is ignored: time limits detect a worker that does not react."""
        with contextlib.suppress(OSError):
            self._ours.send(encode(message))

    def started(self) -> None:
        """Close the agent's copy of the worker's end, after the worker has started."""
        self.theirs.close()

    def close(self) -> None:
        """Read the last messages of a worker that has exited, and close the channel."""
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
