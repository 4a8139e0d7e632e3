"""Where this node is knocked at: it answers every connection with who it is and what time it has."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_trainer.event_loop import hang_up
from ddp_trainer.preflight.facts import VERSION
from ddp_trainer.preflight.wire import LINE_BYTES, encode

BACKLOG: Final = 1024

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Banner:
    """The first line that a preflight says, and its answer when it is asked for the time."""

    preflight: int
    """:data:`~ddp_trainer.preflight.facts.VERSION` of who speaks."""
    token: str
    time: float
    """Seconds since the epoch."""


class Listener:
    """All ports of this node that preflight listens on. Use as a context manager."""

    def __init__(self, token: str, address: str, serve: Serve | None = None) -> None:
        """``address`` is where to listen, everywhere when empty; ``serve`` goes on after the banner."""
        self.token = token
        self._address = address
        self._serve = serve
        self._servers: dict[int, asyncio.Server] = {}

    async def listen(self, port: int) -> int:
        """Listen there, or at a port of the kernel's choice for 0; returns the port. Raises OSError."""
        if port and port in self._servers:
            return port
        # One number for both families: a second socket takes the port that the first was given.
        hosts = [self._address] if self._address else ["0.0.0.0", "::"]  # noqa: S104 - peers come from everywhere
        server = await asyncio.start_server(self._greet, hosts[0], port, limit=LINE_BYTES, backlog=BACKLOG)
        number = int(server.sockets[0].getsockname()[1])
        self._servers[number] = server
        if len(hosts) > 1:
            with contextlib.suppress(OSError):  # a kernel without IPv6
                more = await asyncio.start_server(self._greet, hosts[1], number, limit=LINE_BYTES, backlog=BACKLOG)
                self._servers[-number] = more
        return number

    def banner(self) -> bytes:
        """As of now."""
        return encode(Banner(preflight=VERSION, token=self.token, time=time.time()))

    def close(self) -> None:
        """Give up all ports."""
        for server in self._servers.values():
            server.close()

    async def _greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled is who says nothing when all is over; asyncio would print a traceback of it.
        ours = (OSError, ValueError, EOFError, asyncio.CancelledError)
        try:
            with contextlib.suppress(*ours):
                writer.write(self.banner())
                await writer.drain()
                if self._serve:
                    await self._serve(reader, writer)
        finally:
            await hang_up(writer)


def why_taken(port: int, error: OSError) -> str:
    """A sentence on a port that could not be had."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken{holder(port)}"
    return f"port {port} cannot be listened on: {error.strerror}"


def holder(port: int) -> str:
    """`` by process 7 (python)`` where we may see who listens there, else nothing."""
    wanted = f":{port:04X}"
    inodes: set[str] = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with contextlib.suppress(OSError):
            rows = [line.split() for line in Path(table).read_text().splitlines()[1:]]
            inodes |= {row[9] for row in rows if row[1].endswith(wanted) and row[3] == "0A"}
    for process in Path("/proc").iterdir():
        if process.name.isdecimal() and inodes & _sockets(process):
            with contextlib.suppress(OSError):
                return f" by process {process.name} ({(process / 'comm').read_text().strip()})"
    return ""


def _sockets(process: Path) -> set[str]:
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for each in (process / "fd").iterdir():
            with contextlib.suppress(OSError):
                if match := re.fullmatch(r"socket:\[(\d+)\]", str(each.readlink())):
                    found.add(match[1])
    return found
