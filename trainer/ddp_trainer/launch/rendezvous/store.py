"""The store: a small process that forms the worker groups of a run. ``python -m ddp_trainer store --port 29400``.

It holds no training data and can be restarted at any time. Running workers are not affected, and their agents send the
lost state again. The store exits some seconds after the run is over.
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
from typing import Final

from ddp_trainer.common.constants import Env, Exit, Port
from ddp_trainer.launch.host.secret_file import required_secret
from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.console import LaunchError
from ddp_trainer.launch.protocol.timeouts import HEARTBEAT, TIMEOUTS, HeartbeatTimeouts, Timeouts
from ddp_trainer.launch.rendezvous.agent_connection import AgentConnection, StoreAcceptor
from ddp_trainer.launch.rendezvous.membership import Membership
from ddp_trainer.net import asyncio_utils
from ddp_trainer.net.addresses import port_argument
from ddp_trainer.net.arguments import HELP_HINT, ArgumentParser
from ddp_trainer.net.limited_server import ConnectionLimits, RateLimitedLog, apply_fd_limit
from ddp_trainer.net.run_secret import RunSecret

LINGER_SECONDS: Final = 3.0
"""Time for which the store still answers late agents of a finished run, after its nodes have gone."""

_LINGER_FACTOR: Final = 100
"""Factor for a run that lost a node at its very end. Kubernetes recreates that pod, and it needs the result of the run.
"""

MOST_CONNECTIONS: Final = 8192
MOST_CONNECTIONS_PER_ADDRESS: Final = 256
"""Limit per address, which is also at most a quarter of all. One pod needs one connection. Loopback has no such limit.
"""
MOST_UNSENT_BYTES: Final = 2 * messages.LINE_BYTES
"""Unread data above which a peer counts as lost."""
LOG_LINES_PER_MINUTE: Final = 20
_RECONCILE_FACTOR: Final = 2.0
"""Least pause after a call of :meth:`Membership.reconcile`, as a multiple of its duration. After a slow call, messages
are thus processed together.
"""
MOST_FAILED_RECONCILES: Final = 10
"""Steps of the run that may fail in a row before the store ends, so that another one takes its place."""
FAILED_RECONCILE_SECONDS: Final = 0.5
"""Least time from a failed step to the next one."""


class PortInUseError(LaunchError):
    """Another process listens on the port."""


class Store:
    """Server that connects the state machine :class:`Membership` to sockets.

    Each connection is an :class:`AgentConnection`, which authenticates before anything else.
    """

    def __init__(
        self,
        secret: RunSecret,
        *,
        run_id: str = "",
        heartbeat: HeartbeatTimeouts = HEARTBEAT,
        timeouts: Timeouts = TIMEOUTS,
        linger: float = LINGER_SECONDS,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.membership = Membership(self._send, loop.time, run_id=run_id, timeouts=timeouts)
        self.finished = asyncio.Event()
        """Set some seconds after the run is over, or when the store gives up."""
        self.failure = ""
        """Error that every step of the run ends with; empty if the store has not given up."""
        self.heartbeat = heartbeat
        self.key = secret.key(messages.KEY_PURPOSE)
        total = apply_fd_limit(MOST_CONNECTIONS)
        per_address = max(1, min(MOST_CONNECTIONS_PER_ADDRESS, total // 4))
        limits = ConnectionLimits(total=total, per_address=per_address)
        self._log = RateLimitedLog(lines_per_minute=LOG_LINES_PER_MINUTE, write=_print)
        self.acceptor = StoreAcceptor(limits=limits, log=self._log, make=lambda address: AgentConnection(self, address))
        self.refused = 0
        """Number of connections that failed the handshake."""
        self._loop = loop
        self._linger = linger
        self._connections: dict[int, AgentConnection] = {}
        self._next_peer = 0
        self._timer: asyncio.TimerHandle | None = None
        self._reconcile_due: asyncio.TimerHandle | None = None
        self._reconcile_seconds = 0.0
        self._reconciled_at = 0.0
        self._failed_reconciles = 0
        self._ending = False
        self._sweep = loop.call_later(heartbeat.interval, self._close_timed_out)

    def listen(self, host: str, port: int) -> int:
        """Listen on an address and return the port.

        Raises:
            PortInUseError: If another process uses the port.
            LaunchError: If the address or port cannot be used.
        """
        try:
            return self.acceptor.listen(host, port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise PortInUseError(
                    f"Port {port} of {host or 'this host'} is in use by another process; choose another with --port."
                ) from error
            raise LaunchError(f"Port {port} of {host or 'this host'} cannot be used: {error}.") from error

    def close(self) -> None:
        """Close all connections and timers."""
        self.acceptor.close()
        for connection in list(self._connections.values()):
            connection.close()
        for timer in (self._timer, self._reconcile_due, self._sweep):
            if timer:
                timer.cancel()
        self._log.flush()

    # ------------------------------------------------------------------ called by connections

    def register_connection(self, connection: AgentConnection) -> int:
        """Register a connection that has authenticated, and return its number."""
        self._next_peer += 1
        self._connections[self._next_peer] = connection
        return self._next_peer

    def record_rejection(self, address: str, why: str) -> None:
        """Count a connection that failed the handshake."""
        self.refused += 1
        self._log.write(f"refused a connection from {address}: {why}")

    def handle_message(self, peer: int, message: messages.FromAgent) -> None:
        """Process a message of an agent."""
        if isinstance(message, messages.Ping):
            self._send(peer, messages.Ping(refused=self.refused))
            return
        try:
            self.membership.handle_message(peer, message)
        except Exception as error:  # noqa: BLE001 - one agent's message must not end the run of the others
            self._log.write(f"a message from {self._connections[peer].address} failed: {error!r}")
            self._connections[peer].close()
        self._schedule_reconcile()

    def lost(self, peer: int) -> None:
        """Forget a closed connection."""
        if self._connections.pop(peer, None):
            self.membership.drop(peer)
            self._schedule_reconcile()

    def log(self, line: str) -> None:
        """Write a line, at most :data:`LOG_LINES_PER_MINUTE`."""
        self._log.write(line)

    # ------------------------------------------------------------------ driving the membership

    def _send(self, peer: int, message: messages.FromStore) -> None:
        if connection := self._connections.get(peer):
            connection.send(messages.encode(message))
            if connection.write_buffer_size > MOST_UNSENT_BYTES:
                connection.abort()
            elif isinstance(message, messages.Rejected):
                connection.close()

    def _schedule_reconcile(self) -> None:
        """Reconcile after all messages that have arrived; less often if that is slow."""
        if self._reconcile_due is None:
            pause = self._reconciled_at + _RECONCILE_FACTOR * self._reconcile_seconds - self._loop.time()
            self._reconcile_due = self._loop.call_later(max(0.0, pause), self._reconcile)

    def _reconcile(self) -> None:
        if self._reconcile_due:
            self._reconcile_due.cancel()
        self._reconcile_due = None
        begun = self._loop.time()
        try:
            self.membership.reconcile()
            self._failed_reconciles = 0
        except Exception as error:  # noqa: BLE001 - an error that passes must not end the run
            self._failed_reconciles += 1
            self._log.write(f"a step of the run failed: {error!r}")
            if self._failed_reconciles == MOST_FAILED_RECONCILES:
                self.failure = repr(error)
                self.finished.set()
        self._watch()
        self._reconciled_at = self._loop.time()
        self._reconcile_seconds = self._reconciled_at - begun

    def _watch(self) -> None:
        """Schedule the next :meth:`Membership.reconcile`, and end the store when the run has ended."""
        if self._timer:
            self._timer.cancel()
        deadline = self.membership.deadline()
        earliest = self._loop.time() + (FAILED_RECONCILE_SECONDS if self._failed_reconciles else 0.0)
        self._timer = None if deadline is None else self._loop.call_at(max(deadline, earliest), self._reconcile)
        if self.membership.end.has_parted and not self._ending:
            self._ending = True
            is_awaited = self.membership.end.has_missing_member
            self._loop.call_later(_LINGER_FACTOR * self._linger if is_awaited else self._linger, self.finished.set)

    def _close_timed_out(self) -> None:
        """Close connections that were silent for the heartbeat timeout, or did not authenticate in time."""
        now = self._loop.time()
        for connection in [*self._connections.values(), *self.acceptor.pending()]:
            connection.close_if_timed_out(now)
        self._sweep = self._loop.call_later(self.heartbeat.interval / 2, self._close_timed_out)


def _print(line: str) -> None:
    print(f"ddp-store: {line}", file=sys.stderr, flush=True)


def main(argv: Sequence[str]) -> int:
    """Run a store until its run is over or it receives a signal, and return its exit code.

    A store that stops before the run is over returns 128 + signal number. With 0, the Job of its pod would create no
    other.
    """
    if_free = "--if-free" in argv
    try:
        over, signalled = asyncio_utils.run(_run(argument_parser().parse_args(argv)))
    except LaunchError as error:
        if if_free and isinstance(error, PortInUseError):
            return Exit.SUCCESS
        print(f"ddp-store: {error}", file=sys.stderr)
        return error.exit_code
    if not over:
        return Exit.SIGNAL_BASE + signalled
    print(f"ddp-store: the run {over.verdict}, restarts by cause: {json.dumps(over.restarts)}", file=sys.stderr)
    return Exit.SUCCESS


async def _run(arguments: argparse.Namespace) -> tuple[messages.Over | None, int]:
    """Return the end of the run, and the number of the signal that stopped the store before it."""
    store = Store(
        required_secret(arguments.secret_file, arguments.run_id),
        run_id=arguments.run_id,
        heartbeat=HeartbeatTimeouts(interval=arguments.heartbeat_timeout / 5, timeout=arguments.heartbeat_timeout),
        timeouts=Timeouts(adopt=arguments.adopt_seconds, first=arguments.first_seconds),
        linger=arguments.linger_seconds,
    )
    signalled: list[int] = []

    def stop(number: int) -> None:
        signalled.append(number)
        store.finished.set()

    for which in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(which, stop, which)
    with contextlib.closing(store):
        port = store.listen(arguments.host, arguments.port)
        print(f"ddp-store: listening on {arguments.host or '*'}:{port}", file=sys.stderr, flush=True)
        await store.finished.wait()
    if store.failure:
        why = f"The store gives up, because each step of the run fails: {store.failure}."
        raise LaunchError(why, exit_code=Exit.RENDEZVOUS_LOST)
    return store.membership.end.over, signalled[0] if signalled else 0


_DESCRIPTION: Final = (
    "Form the worker groups of a run. The store holds no training data, and may be restarted at any time: running "
    "workers are not affected. It exits some seconds after the run is over."
)


def argument_parser() -> argparse.ArgumentParser:
    """Return the parser of the flags."""
    parser = ArgumentParser(LaunchError, hint=HELP_HINT, prog="python -m ddp_trainer store", description=_DESCRIPTION)
    seconds = partial(parser.add_argument, type=_seconds, metavar="SECONDS")
    # Two jobs on one machine share its ports. Only the addresses of their pods differ.
    address = os.environ.get(Env.POD_IP, "")
    parser.add_argument(
        "--host", default=address, help=f"address to listen on (default ${Env.POD_IP}, or all if it is empty)"
    )
    parser.add_argument(
        "--port", type=port_argument, default=int(Port.RENDEZVOUS), help="port to listen on (default %(default)s)"
    )
    parser.add_argument("--if-free", action="store_true", help="exit with 0 if another store has the port already")
    run_id = os.environ.get(Env.RUN_ID, "")
    parser.add_argument(
        "--run-id",
        default=run_id,
        help="id of the run; agents of other runs are refused (default: the run of the first agent)",
    )
    secret_file = os.environ.get(Env.SECRET_FILE, "")
    parser.add_argument(
        "--secret-file", default=secret_file, help=f"file with the run's secret (default ${Env.SECRET_FILE})"
    )
    seconds(
        "--heartbeat-timeout",
        default=HEARTBEAT.timeout,
        help="time without a message after which an agent counts as lost",
    )
    seconds(
        "--linger-seconds",
        default=LINGER_SECONDS,
        help="time for which late agents of a finished run still get an answer",
    )
    seconds("--adopt-seconds", default=TIMEOUTS.adopt, help="time for which a restarted store waits for known agents")
    seconds(
        "--first-seconds",
        default=TIMEOUTS.first,
        help="time after the start in which only a group of the maximum size is formed",
    )
    return parser


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"{text} is not a number of seconds")
    return value
