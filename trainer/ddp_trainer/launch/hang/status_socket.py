"""Pages about the ranks of one agent, served at a Unix socket beside their heartbeat pages.

A client of :class:`HangStatusServer` sends the name of a page as one line and receives one JSON document. The
aggregator requests :data:`~ddp_trainer.process.heartbeat_page.OUTLINE` and serves it at the metrics port: ranks,
numbers, pods and collectives. ``python -m ddp_trainer hang`` in the same pod, which needs the right to exec, requests
:data:`~ddp_trainer.process.heartbeat_page.STACKS`. That page adds stacks, lines of code, processes, sentences of the
launcher, and NCCL's own report. Only this user and root can connect.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from ddp_trainer.launch.hang import nccl_ras
from ddp_trainer.net.limited_server import Connection, ConnectionLimits, LimitedServer, RateLimitedLog
from ddp_trainer.process import heartbeat_page
from ddp_trainer.process.socket_address import short_address

VERSION: Final = "ddp.dev/hang/v1"
MOST_FINDINGS: Final = 8
"""Number of findings kept, for a run that hangs repeatedly."""
FRESH_SECONDS: Final = 0.5
"""Age up to which a page is served again. A new page with stacks makes every rank write them."""
MOST_CONNECTIONS: Final = 16
MOST_REQUEST_BYTES: Final = 64
REQUEST_SECONDS: Final = 1.0
LINES_PER_MINUTE: Final = 6


class SnapshotSource(Protocol):
    """Source of the ranks' states."""

    async def summarize_ranks(self) -> list[dict[str, Any]]:
        """Return outlines without any work of the ranks."""

    async def take_snapshots(self) -> list[dict[str, Any]]:
        """Return snapshots with stacks."""


@dataclass(slots=True)
class FindingHistory:
    """Most recent findings."""

    last: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=MOST_FINDINGS))
    """Fields for JSON, with the Unix time in seconds."""

    def add(self, generation: int, ranks: tuple[int, ...], killed: tuple[int, ...], sentences: tuple[str, ...]) -> None:
        """Add a finding with the current time."""
        about = {"time": time.time(), "generation": generation, "ranks": ranks, "killed": killed}
        self.last.append({**about, "sentences": sentences})


@dataclass(slots=True, eq=False)
class HangStatusServer:
    """Server of the pages of one agent."""

    folder: Path
    """Folder of the socket."""
    environment: Mapping[str, str]
    """Environment of this launcher."""
    eyes: SnapshotSource
    """Source of the ranks' states."""
    about: Callable[[], dict[str, Any]]
    """Returns the fields that need no look at the ranks."""
    findings: FindingHistory
    """Findings that the pages contain."""
    say: Callable[[str], None]
    """Prints a line to the log."""
    _turns: dict[bytes, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))
    _made: dict[bytes, tuple[float, bytes]] = field(default_factory=dict)
    """Page → monotonic time at which it was made, and its text."""
    _server: LimitedServer | None = None

    async def start(self) -> None:
        """Listen at the socket. If this fails, no page is served and training continues."""
        with contextlib.suppress(OSError):
            listener = bind_status_socket(self.folder)
            limits = ConnectionLimits(total=MOST_CONNECTIONS, per_address=MOST_CONNECTIONS)
            log = RateLimitedLog(lines_per_minute=LINES_PER_MINUTE, write=lambda line: self.say(f"hang: {line}"))
            size = MOST_REQUEST_BYTES
            self._server = LimitedServer(listener, self._serve, limits=limits, log=log, buffer_bytes=size)
            self._server.start()

    async def close(self) -> None:
        """Stop listening, and remove the socket."""
        if self._server:
            (self.folder / heartbeat_page.LAUNCHER).unlink(missing_ok=True)
            await self._server.close()

    @property
    def _pages(self) -> dict[bytes, Callable[[], Awaitable[dict[str, Any]]]]:
        return {heartbeat_page.OUTLINE: self._summary_document, heartbeat_page.STACKS: self._stacks}

    async def _serve(self, connection: Connection) -> None:
        async with asyncio.timeout(REQUEST_SECONDS):
            name = await connection.reader.readuntil(b"\n")
        if name in self._pages:
            connection.writer.write(await self._cached_response(name))
            await connection.writer.drain()

    async def _cached_response(self, name: bytes) -> bytes:
        async with self._turns[name]:
            made_at, page = self._made.get(name, (float("-inf"), b""))
            if time.monotonic() - made_at > FRESH_SECONDS:
                page = json.dumps(await self._pages[name]()).encode()
                self._made[name] = (time.monotonic(), page)
            return page

    async def _summary_document(self) -> dict[str, Any]:
        # The sentences contain lines of code.
        told = [{name: finding[name] for name in finding if name != "sentences"} for finding in self.findings.last]
        return self._payload(ranks=await self.eyes.summarize_ranks(), findings=told)

    async def _stacks(self) -> dict[str, Any]:
        ranks, ras = await asyncio.gather(
            self.eyes.take_snapshots(), asyncio.to_thread(nccl_ras.report, self.environment)
        )
        return self._payload(ranks=ranks, findings=list(self.findings.last), ras=ras)

    def _payload(self, **parts: Any) -> dict[str, Any]:
        return {"version": VERSION, **self.about(), "time": time.time(), **parts}


def bind_status_socket(folder: Path) -> socket.socket:
    """Return a socket bound in this folder with mode 0600, in place of the socket of a dead launcher.

    Raises:
        OSError: The socket cannot be made.
    """
    path = folder / heartbeat_page.LAUNCHER
    path.unlink(missing_ok=True)
    with short_address(path) as address, socket.socket(socket.AF_UNIX) as listener:
        # Set before bind, which creates the file with this mode.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(address)
        return socket.socket(fileno=listener.detach())
