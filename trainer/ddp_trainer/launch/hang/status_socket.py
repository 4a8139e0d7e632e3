"""Pages about the ranks of one agent, served at a Unix socket beside their heartbeat pages.

A client of :class:`HangStatusServer` sends the name of a page as one line and receives one JSON document. The
aggregator requests :data:`~ddp_trainer.process.heartbeat_page.OUTLINE` and serves it at the metrics port: ranks,
numbers, pods and collectives. ``python -m ddp_trainer hang`` in the same pod, which needs the right to exec, requests
:data:`~ddp_trainer.process.heartbeat_page.STACKS`. That page adds stacks, lines of code, processes, sentences of the
launcher, and NCCL's own report. Only this user and root can connect.

:func:`nccl_report` reads the report of NCCL's RAS subsystem (2.24 and later) about missing ranks from the RAS client
socket of this host. NCCL opens this port, which only processes of this host (of this pod's network) can reach. RAS
covers all ranks of the job, so the report of one pod is enough.
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

from ddp_trainer.net.limited_server import Connection, ConnectionLimits, LimitedServer, RateLimitedLog
from ddp_trainer.process import heartbeat_page
from ddp_trainer.process.socket_address import short_address

ADDRESS_VARIABLE: Final = "NCCL_RAS_ADDR"
HOST: Final = "localhost"
PORT: Final = 28028
PROTOCOL: Final = 2
"""Protocol version of this client; RAS also serves clients of other versions."""
COLLECT_SECONDS: Final = 2
"""Seconds that RAS waits for the processes of the job to answer."""
ANSWER_SECONDS: Final = 3.0
MOST_CHARACTERS: Final = 16_000


def nccl_report(environment: Mapping[str, str]) -> str:
    """Return RAS's status of the job as text, at most ``MOST_CHARACTERS`` bytes of it; empty if RAS does not answer."""
    try:
        with socket.create_connection(address_of(environment), timeout=0.5) as connection:
            connection.settimeout(ANSWER_SECONDS)
            with connection.makefile("rb") as answers:
                connection.sendall(f"CLIENT PROTOCOL {PROTOCOL}\n".encode())
                if not answers.readline(200).startswith(b"SERVER PROTOCOL "):
                    return ""  # another program uses this port
                connection.sendall(f"TIMEOUT {COLLECT_SECONDS}\n".encode())
                if answers.readline(200) != b"OK\n":
                    return ""
                connection.sendall(b"VERBOSE STATUS\n")
                return answers.read(MOST_CHARACTERS).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def address_of(environment: Mapping[str, str]) -> tuple[str, int]:
    """Return host and port of RAS, from the variable that NCCL reads.

    >>> address_of({}), address_of({"NCCL_RAS_ADDR": "[::1]:4000"})
    (('localhost', 28028), ('::1', 4000))

    Raises:
        ValueError: If the variable holds no address.
    """
    host, colon, port = environment.get(ADDRESS_VARIABLE, "").rpartition(":")
    return (host.strip("[]") or HOST, int(port)) if colon else (HOST, PORT)


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
        finding = {"time": time.time(), "generation": generation, "ranks": ranks, "killed": killed}
        self.last.append({**finding, "sentences": sentences})


@dataclass(slots=True, eq=False)
class HangStatusServer:
    """Server of the pages of one agent."""

    folder: Path
    """Folder of the socket."""
    environment: Mapping[str, str]
    """Environment of this launcher."""
    snapshots: SnapshotSource
    """Source of the ranks' states."""
    common_fields: Callable[[], dict[str, Any]]
    """Returns the fields that need no look at the ranks."""
    findings: FindingHistory
    """Findings that the pages contain."""
    log: Callable[[str], None]
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
            log = RateLimitedLog(lines_per_minute=LINES_PER_MINUTE, write=lambda line: self.log(f"hang: {line}"))
            size = MOST_REQUEST_BYTES
            self._server = LimitedServer(listener, self._serve, limits=limits, log=log, buffer_bytes=size)
            self._server.start()

    async def close(self) -> None:
        """Stop listening, and remove the socket."""
        if self._server:
            (self.folder / heartbeat_page.LAUNCHER).unlink(missing_ok=True)
            await self._server.close()

    @property
    def _handlers(self) -> dict[bytes, Callable[[], Awaitable[dict[str, Any]]]]:
        return {heartbeat_page.OUTLINE: self._summary_document, heartbeat_page.STACKS: self._stacks}

    async def _serve(self, connection: Connection) -> None:
        async with asyncio.timeout(REQUEST_SECONDS):
            name = await connection.reader.readuntil(b"\n")
        if name in self._handlers:
            connection.writer.write(await self._cached_response(name))
            await connection.writer.drain()

    async def _cached_response(self, name: bytes) -> bytes:
        async with self._turns[name]:
            made_at, page = self._made.get(name, (float("-inf"), b""))
            if time.monotonic() - made_at > FRESH_SECONDS:
                page = json.dumps(await self._handlers[name]()).encode()
                self._made[name] = (time.monotonic(), page)
            return page

    async def _summary_document(self) -> dict[str, Any]:
        # The sentences contain lines of code.
        findings = [{name: finding[name] for name in finding if name != "sentences"} for finding in self.findings.last]
        return self._payload(ranks=await self.snapshots.summarize_ranks(), findings=findings)

    async def _stacks(self) -> dict[str, Any]:
        ranks, ras = await asyncio.gather(
            self.snapshots.take_snapshots(), asyncio.to_thread(nccl_report, self.environment)
        )
        return self._payload(ranks=ranks, findings=list(self.findings.last), ras=ras)

    def _payload(self, **parts: Any) -> dict[str, Any]:
        return {"version": VERSION, **self.common_fields(), "time": time.time(), **parts}


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
