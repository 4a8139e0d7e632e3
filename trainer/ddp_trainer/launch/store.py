"""The store: a small process that says who is in the run. ``python -m ddp_trainer store --port 29400``.

It holds no training data and can be restarted at any time: running workers do not notice, and their agents tell it
what it has forgotten. It ends by itself some seconds after the run is over.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Sequence
from functools import partial
from typing import Final, NoReturn

from ddp_trainer import event_loop
from ddp_trainer.contract import Env, Exit, Port
from ddp_trainer.launch.client import tune
from ddp_trainer.launch.errors import LaunchError
from ddp_trainer.launch.membership import Membership
from ddp_trainer.launch.protocol import (
    LINE_BYTES,
    FromAgent,
    FromStore,
    Hello,
    Over,
    ProtocolError,
    Refused,
    decode,
    encode,
)
from ddp_trainer.launch.timing import HEARTBEAT, PATIENCE, Heartbeat, Patience

LINGER_SECONDS: Final = 10.0
"""How long late comers of a finished run still get an answer, once its nodes have gone."""

_LINGER_FACTOR: Final = 30
"""So many times as long where a node was lost at the very end: Kubernetes makes its pod anew, and waits for that."""

BACKLOG: Final = 1024
MOST_UNSENT_BYTES: Final = 4 * LINE_BYTES
"""A peer that does not read so much is as good as gone."""


class PortTaken(LaunchError):
    """Another process listens there."""


class Store:
    """The server around a :class:`Membership`."""

    def __init__(
        self,
        *,
        run_id: str = "",
        heartbeat: Heartbeat = HEARTBEAT,
        patience: Patience = PATIENCE,
        linger: float = LINGER_SECONDS,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.membership = Membership(self._send, loop.time, run_id=run_id, patience=patience)
        self.finished = asyncio.Event()
        """Set some seconds after the run is over."""
        self._loop = loop
        self._heartbeat = heartbeat
        self._linger = linger
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._next_peer = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ending = False

    async def listen(self, host: str, port: int) -> asyncio.Server:
        """Serve. Raises LaunchError when the port is taken or the address is not ours."""
        try:
            return await asyncio.start_server(self._serve, host or None, port, limit=LINE_BYTES, backlog=BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortTaken(
                    f"Port {port} of {host or 'this host'} is in use by another process; choose another with --port."
                ) from error
            raise LaunchError(f"Port {port} of {host or 'this host'} cannot be used: {error}.") from error

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._next_peer += 1
        peer = self._next_peer
        try:
            tune(writer.get_extra_info("socket"), self._heartbeat.timeout)
            hello = await self._read(reader)
            if isinstance(hello, Hello):  # port scanners and lost browsers get no answer
                self._writers[peer] = writer
                self._hear(peer, hello)
                while peer in self._writers:
                    self._hear(peer, await self._read(reader))
        except (OSError, TimeoutError, ProtocolError, ValueError, EOFError, asyncio.LimitOverrunError):
            pass  # it is gone, or it is none of ours
        finally:
            if self._writers.pop(peer, None):
                self.membership.lost(peer)
                self._watch()
            await event_loop.hang_up(writer)

    async def _read(self, reader: asyncio.StreamReader) -> FromAgent:
        async with asyncio.timeout(self._heartbeat.timeout):
            line = await reader.readuntil(b"\n")
        message = decode(line)
        if isinstance(message, FromAgent):
            return message
        raise ProtocolError("only the store says that")

    def _hear(self, peer: int, message: FromAgent) -> None:
        self.membership.receive(peer, message)
        self._watch()

    def _send(self, peer: int, message: FromStore) -> None:
        writer = self._writers.get(peer)
        if not writer:
            return
        writer.write(encode(message))
        if isinstance(message, Refused) or writer.transport.get_write_buffer_size() > MOST_UNSENT_BYTES:
            writer.close()

    def _watch(self) -> None:
        """Look at the membership again when it is due, and end when the run has."""
        if self._timer:
            self._timer.cancel()
        deadline = self.membership.deadline()
        self._timer = None if deadline is None else self._loop.call_at(deadline, self._tick)
        if self.membership.has_parted and not self._ending:
            self._ending = True
            is_awaited = self.membership.misses_a_member
            self._loop.call_later(_LINGER_FACTOR * self._linger if is_awaited else self._linger, self.finished.set)

    def _tick(self) -> None:
        self.membership.tick()
        self._watch()


def main(argv: Sequence[str]) -> int:
    """Run a store until its run is over or it is told to stop; returns its exit code.

    One that is told to stop before has not succeeded: the Job of its pod would make no other.
    """
    if_free = "--if-free" in argv
    try:
        over, signalled = event_loop.run(_run(_parser().parse_args(argv)))
    except PortTaken as error:
        if not if_free:
            print(f"ddp-store: {error}", file=sys.stderr)
        return Exit.SUCCESS if if_free else error.exit_code
    except LaunchError as error:
        print(f"ddp-store: {error}", file=sys.stderr)
        return error.exit_code
    if not over:
        return Exit.SIGNAL_BASE + signalled
    print(f"ddp-store: the run {over.verdict}, restarts by cause: {json.dumps(over.restarts)}", file=sys.stderr)
    return Exit.SUCCESS


async def _run(arguments: argparse.Namespace) -> tuple[Over | None, int]:
    """What the run came to, and the signal that ended the store before."""
    store = Store(
        run_id=arguments.run_id,
        heartbeat=Heartbeat(interval=arguments.heartbeat_timeout / 5, timeout=arguments.heartbeat_timeout),
        patience=Patience(adopt=arguments.adopt_seconds, first=arguments.first_seconds),
        linger=arguments.linger_seconds,
    )
    signalled: list[int] = []

    def stop(number: int) -> None:
        signalled.append(number)
        store.finished.set()

    for which in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(which, stop, which)
    server = await store.listen(arguments.host, arguments.port)
    port = server.sockets[0].getsockname()[1]
    print(f"ddp-store: listening on {arguments.host or '*'}:{port}", file=sys.stderr, flush=True)
    with contextlib.closing(server):
        await store.finished.wait()
    return store.membership.over, signalled[0] if signalled else 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise LaunchError(f"{message[:1].upper()}{message[1:]}; --help lists the flags.")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m ddp_trainer store", description=__doc__)
    seconds = partial(parser.add_argument, type=_seconds, metavar="SECONDS")
    # Two jobs on one machine share its ports, and are told apart by the addresses of their pods alone.
    address = os.environ.get(Env.POD_IP, "")
    parser.add_argument("--host", default=address, help=f"address to listen on: ${Env.POD_IP}, or all when empty")
    parser.add_argument("--port", type=_port, default=int(Port.RENDEZVOUS))
    parser.add_argument("--if-free", action="store_true", help="end well when another store has the port already")
    run_id = os.environ.get(Env.RUN_ID, "")
    parser.add_argument("--run-id", default=run_id, help="refuse agents of other runs; the first one's when empty")
    seconds("--heartbeat-timeout", default=HEARTBEAT.timeout, help="silence after which an agent counts as lost")
    seconds("--linger-seconds", default=LINGER_SECONDS, help="how long late comers of a finished run are answered")
    seconds("--adopt-seconds", default=PATIENCE.adopt, help="after a restart, how long known agents are waited for")
    seconds("--first-seconds", default=PATIENCE.first, help="after a start, how long no group below the most is formed")
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return value


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) >= 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is no port; a port is a number from 0 to 65535")
    return int(text)
