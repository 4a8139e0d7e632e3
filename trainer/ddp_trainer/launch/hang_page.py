"""What ``kubectl ddp hang`` reads: how an agent's ranks look now, and whom the launcher has named before.

The agent gives it to whoever connects to a socket in the folder of the pulses, which is our own user's; the aggregator
passes it on at its port. One JSON document, and the end of the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from ddp_trainer import pulse
from ddp_trainer.launch import hang_ras
from ddp_trainer.launch.hang_sight import Sight

VERSION: Final = "ddp.dev/hang/v1"
MOST_FINDINGS: Final = 8
"""The last ones, of a run that hangs again and again."""
FRESH_SECONDS: Final = 0.5
"""Who asks more often is given the last answer: each makes every rank write its stacks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whom the launcher has named by itself, past half of a limit or past all of it."""

    time: float
    """Unix time."""
    generation: int
    ranks: tuple[int, ...]
    killed: tuple[int, ...]
    sentences: tuple[str, ...]


@dataclass(slots=True)
class Findings:
    """The last of them."""

    last: deque[Finding] = field(default_factory=lambda: deque(maxlen=MOST_FINDINGS))

    def add(self, generation: int, ranks: tuple[int, ...], killed: tuple[int, ...], sentences: tuple[str, ...]) -> None:
        """One more."""
        self.last.append(
            Finding(time=time.time(), generation=generation, ranks=ranks, killed=killed, sentences=sentences)
        )


class HangPage:
    """Serves it at a socket."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        look: Callable[[], Awaitable[list[Sight]]],
        about: Callable[[], dict[str, Any]],
        findings: Findings,
    ) -> None:
        """``look`` tells how the ranks look now; ``about`` what is known without looking at them."""
        self._folder = folder
        self._environment = environment
        self._look = look
        self._about = about
        self._findings = findings
        self._turn = asyncio.Lock()
        self._made: tuple[float, bytes] = (float("-inf"), b"")
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen. Where that cannot be, nobody is shown anything, and training goes on."""
        with contextlib.suppress(OSError):
            self._server = await asyncio.start_unix_server(self._answer, sock=listener_in(self._folder))

    def close(self) -> None:
        """Listen no more."""
        if self._server:
            self._server.close()
            (self._folder / pulse.LAUNCHER).unlink(missing_ok=True)

    async def _answer(self, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            writer.write(await self._page())
            await writer.drain()
        writer.close()

    async def _page(self) -> bytes:
        async with self._turn:
            made_at, page = self._made
            if time.monotonic() - made_at > FRESH_SECONDS:
                page = json.dumps(await self._document()).encode()
                self._made = (time.monotonic(), page)
            return page

    async def _document(self) -> dict[str, Any]:
        sights, ras = await asyncio.gather(self._look(), asyncio.to_thread(hang_ras.report, self._environment))
        return {
            "version": VERSION,
            **self._about(),
            "time": time.time(),
            "ranks": [sight.plain() for sight in sights],
            "findings": [asdict(finding) for finding in self._findings.last],
            "ras": ras,
        }


def listener_in(folder: Path) -> socket.socket:
    """A socket of ours alone in this folder, in place of a dead launcher's. Raises OSError."""
    (folder / pulse.LAUNCHER).unlink(missing_ok=True)
    descriptor = os.open(folder, os.O_PATH | os.O_CLOEXEC)
    try:
        listener = socket.socket(socket.AF_UNIX)
        # The address of a socket has 107 bytes, and a path may have more.
        address = f"/proc/self/fd/{descriptor}/{pulse.LAUNCHER}"
        listener.bind(address)
        os.chmod(address, 0o600)  # noqa: PTH101 - by the folder's descriptor
        return listener
    finally:
        os.close(descriptor)
