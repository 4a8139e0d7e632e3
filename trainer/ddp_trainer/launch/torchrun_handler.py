"""Rendezvous handler for stock torchrun with this package's store: ``torchrun --rdzv-backend ddp --rdzv-endpoint
HOST:29400 script.py``.

torch finds :func:`create` by the entry point group ``torchrun.handlers``. Its agent restarts workers by itself and does
not report failures, so the store only receives arrivals and departures from :class:`StoreRendezvous`. It orders the
ranks by pod index, and re-forms the group as soon as a node is lost. torch's own rendezvous needs 20 to 40 s for this.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from typing import Final

from torch.distributed import (  # type: ignore[attr-defined] # torch names them in no __all__
    PrefixStore,
    TCPStore,
)
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
    RendezvousTimeoutError,
)

from ddp_trainer.common.constants import Env, Exit, FailureReason
from ddp_trainer.launch.failures.failure_reason import MESSAGE_CHARACTERS, quoted
from ddp_trainer.launch.host.endpoint import parse_endpoint
from ddp_trainer.launch.host.secret_file import required_secret
from ddp_trainer.launch.protocol.errors import LaunchError
from ddp_trainer.launch.protocol.messages import (
    VERSION,
    Assignment,
    Failure,
    FromAgent,
    FromStore,
    Hello,
    Hung,
    Join,
    Leave,
    Node,
    Over,
    Part,
    Ping,
    Policy,
    Refused,
    Show,
    Standing,
    Start,
    Stop,
    Succeeded,
    Verdict,
    Waiting,
)
from ddp_trainer.launch.rendezvous.client import TcpLink
from ddp_trainer.launch.rendezvous.ranks import node_index

BACKEND: Final = "ddp"
_STORE_TIMEOUT: Final = timedelta(seconds=300)


def create() -> Callable[[RendezvousParameters], RendezvousHandler]:
    """Return the function from parameters to a handler, which torch's registry expects."""
    return StoreRendezvous


class StoreRendezvous(RendezvousHandler):
    """Rendezvous handler of one node. The connection to the store has a separate thread; torch's agent polls."""

    def __init__(self, parameters: RendezvousParameters) -> None:
        super().__init__()
        self._run_id = parameters.run_id
        path = str(parameters.get("secret_file", "") or os.environ.get(Env.SECRET_FILE, ""))
        try:
            secret = required_secret(path, self._run_id)
        except LaunchError as error:
            raise RendezvousConnectionError(str(error)) from None
        self._timeout = float(parameters.get("join_timeout", 600))
        self._address = parameters.local_addr or os.environ.get(Env.POD_IP, "")
        self._node = Node(
            token=uuid.uuid4().hex,
            name=os.environ.get(Env.POD_NAME) or f"{socket.gethostname()}-{os.getpid()}",
            index=node_index(os.environ),
            local_world_size=1,  # torch assigns the ranks of workers by itself
            address=self._address,
        )
        self._policy = Policy(
            min_nodes=parameters.min_nodes,
            max_nodes=parameters.max_nodes,
            max_restarts=0,
            settle_seconds=float(parameters.get("settle_timeout", 1)),
            last_call_seconds=float(parameters.get("last_call_timeout", 30)),
        )
        self._changed = threading.Condition()
        self._generation: Assignment | None = None
        self._joining: int | None = None
        """Port of the last Join; None once a generation has started with it."""
        self._is_stale = False
        self._refusal = ""
        self._link_up = False
        self._trouble = ""
        self._store: TCPStore | None = None
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="ddp-rendezvous", daemon=True)
        self._thread.start()
        self._link = TcpLink(parse_endpoint(parameters.endpoint), secret, source=os.environ.get(Env.POD_IP, ""))
        self._on_loop(self._start_link())

    # ------------------------------------------------------------------ called by torch's agent

    def get_backend(self) -> str:
        """Return the name of the backend on torchrun's command line."""
        return BACKEND

    def get_run_id(self) -> str:
        """Return the value of ``--rdzv-id``."""
        return self._run_id

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a generation with this node, and return its store and this node's rank.

        Raises:
            RendezvousClosedError: The run is over, or the store refused this node.
            RendezvousConnectionError: The store could not be reached in time.
            RendezvousTimeoutError: No group formed in time.
        """
        # Rank 0 serves a new TCPStore for each generation, so that no key of the last generation is visible.
        self._store = TCPStore("0.0.0.0", 0, is_master=True, wait_for_workers=False, timeout=_STORE_TIMEOUT)  # noqa: S104
        port = self._store.port
        with self._changed:
            self._joining, self._generation, self._is_stale = port, None, False
        self._on_loop(self._send([Join(port=port)]))
        with self._changed:
            self._changed.wait_for(lambda: self._generation or self._refusal, self._timeout)
            generation = self._generation
        if self._refusal:
            raise RendezvousClosedError(self._refusal)
        if generation is None:
            raise self._why_not()
        return self._info(generation)

    def num_nodes_waiting(self) -> int:
        """Return 1 if this generation is over and torch must rejoin, else 0."""
        return int(self._is_stale)

    def is_closed(self) -> bool:
        """Return whether the run is over for this node."""
        return bool(self._refusal)

    def set_closed(self) -> None:
        """Do nothing: one node that gives up must not end the run of the others."""

    def shutdown(self) -> bool:
        """Leave the run. torch calls this when its agent has succeeded, and while an error of the agent propagates."""
        leaving = self._last_words(sys.exception())
        with suppress(RuntimeError, FutureTimeoutError):
            self._on_loop(self._stop_link(leaving))
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(5)
        return True

    # ------------------------------------------------------------------ messages of the store, on the thread

    def opening(self, address: str) -> list[FromAgent]:
        """See :class:`~ddp_trainer.launch.rendezvous.transport.Listener`."""
        with self._changed:
            self._link_up = True
            self._address = self._address or address
            node = self._node if self._node.address else replace(self._node, address=address)
            standing = Standing.RUNNING if self._generation else Standing.IDLE
            hello = Hello(
                version=VERSION,
                run_id=self._run_id,
                node=node,
                policy=self._policy,
                standing=standing,
                clock=time.time(),
                last=self._generation,
            )
            return [hello] if self._joining is None else [hello, Join(port=self._joining)]

    def link_down(self) -> None:
        """See :class:`~ddp_trainer.launch.rendezvous.transport.Listener`."""
        self._link_up = False

    def link_trouble(self, why: str) -> None:
        """See :class:`~ddp_trainer.launch.rendezvous.transport.Listener`."""
        self._trouble = f": {why}"

    def told(self, message: FromStore) -> None:
        """See :class:`~ddp_trainer.launch.rendezvous.transport.Listener`."""
        with self._changed:
            match message:
                case Start():
                    self._generation, self._joining = message.assignment, None
                case Stop():
                    self._is_stale = True
                case Over() | Refused():
                    self._refusal = message.why if isinstance(message, Refused) else f"The run has {message.verdict}."
                    self._is_stale = not isinstance(message, Over) or message.verdict is not Verdict.SUCCEEDED
                case Waiting() | Show() | Hung() | Ping() | Part():  # torch's agent has no hang watchdog
                    pass
            self._changed.notify_all()

    # ------------------------------------------------------------------ helpers

    def _info(self, generation: Assignment) -> RendezvousInfo:
        rank = generation.node_rank
        address, port = generation.master_address, generation.master_port
        if rank == 0 and self._store:
            store = self._store
        else:
            store = TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=_STORE_TIMEOUT)
        # Kept as an attribute too: rank 0's own lives as long as this generation.
        prefixed = PrefixStore(f"generation/{generation.number}", store)
        bootstrap = RendezvousStoreInfo.build(rank, prefixed, self._address)
        return RendezvousInfo(prefixed, rank, generation.node_count, bootstrap)

    def _why_not(self) -> Exception:
        if not self._link_up:
            return RendezvousConnectionError(f"The store could not be reached for {self._timeout:g} s{self._trouble}.")
        return RendezvousTimeoutError(f"No group was formed within {self._timeout:g} s.")

    def _on_loop(self, task: Coroutine[None, None, None]) -> None:
        asyncio.run_coroutine_threadsafe(task, self._loop).result(10)

    async def _start_link(self) -> None:
        self._link.start(self)

    async def _send(self, messages: list[FromAgent]) -> None:
        for message in messages:
            self._link.send(message)

    async def _stop_link(self, messages: list[FromAgent]) -> None:
        await self._send(messages)
        await self._link.close()

    def _last_words(self, error: BaseException | None) -> list[FromAgent]:
        number = self._generation.number if self._generation else 0
        if error is None:
            return [Succeeded(generation=number), Leave()]
        message = f"{type(error).__name__}: {error}"
        failure = Failure(
            generation=number,
            rank=self._generation.node_rank if self._generation else 0,
            local_rank=0,
            node=self._node.name,
            host=os.environ.get(Env.NODE_NAME) or socket.gethostname(),
            exit_code=Exit.FAILURE,
            reason=FailureReason.OTHER,
            message=quoted(message, MESSAGE_CHARACTERS),
            timestamp=time.time(),
        )
        return [Leave(giving_up=failure)]
