"""The agent's connection to its store, where the store's name also leads to others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, Final

import pytest

from ddp_trainer.common.constants import OutsideReason
from ddp_trainer.launch.host.endpoint import Endpoint
from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.generation import Node
from ddp_trainer.launch.protocol.timeouts import Timeouts
from ddp_trainer.launch.rendezvous.client import TcpLink
from ddp_trainer.launch.rendezvous.store import MOST_FAILED_RECONCILES, Store
from ddp_trainer.net.handshake import ServerHandshake
from ddp_trainer.net.run_secret import RunSecret

STORE, STRANGER, UNREACHABLE = "127.0.0.1", "127.0.0.2", "127.0.0.3"
SECRET: Final = RunSecret.random()
OVER: Final = messages.encode(messages.Over(verdict=messages.Verdict.SUCCEEDED, exit_code=0))
Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Listener:
    """Listener that keeps the reports of a link; :attr:`first_message` is the first message of a store."""

    def __init__(self) -> None:
        self.first_message: asyncio.Future[messages.FromStore] = asyncio.get_running_loop().create_future()
        self.troubles: asyncio.Queue[tuple[str, OutsideReason]] = asyncio.Queue()

    def initial_messages(self, address: str) -> Sequence[messages.FromAgent]:
        node = Node(token="t0", name="worker-0", index=0, local_world_size=1, address=address)
        policy = messages.Policy(min_nodes=1, max_nodes=1, max_restarts=0)
        idle, version = messages.WorkerState.IDLE, messages.VERSION
        hello = messages.Hello(version=version, run_id="run", node=node, policy=policy, standing=idle)
        return hello, messages.Join(port=1)

    def on_message(self, message: messages.FromStore) -> None:
        if not self.first_message.done():
            self.first_message.set_result(message)

    def link_down(self) -> None: ...

    def link_failed(self, why: str, reason: OutsideReason) -> None:
        self.troubles.put_nowait((why, reason))


async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read()


async def old_store(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.write(OVER)
    await reader.read()


async def impostor(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    handshake = ServerHandshake(RunSecret.random().key(messages.KEY_PURPOSE), messages.VERSION)
    writer.write(handshake.make_challenge(await reader.readline()) + OVER)
    await reader.read()


async def hangs_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


Lookup = Callable[[], Awaitable[Sequence[str]]]


def look_up(monkeypatch: pytest.MonkeyPatch, lookup: Lookup, attempt_seconds: float = 0.1) -> None:
    """Resolve every name by this function, and end a connection attempt after this time."""

    async def found(_host: str, port: int, **_: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in await lookup()]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", found)
    monkeypatch.setattr("ddp_trainer.launch.rendezvous.client._CONNECT_SECONDS", attempt_seconds)


def resolve(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    """Resolve every name to these addresses in this order, like a headless Service with several endpoints."""

    async def lookup() -> Sequence[str]:
        return addresses

    look_up(monkeypatch, lookup, attempt_seconds=2.0)


@contextlib.asynccontextmanager
async def stranger_beside(answer: Answer) -> AsyncIterator[int]:
    """Run a stranger and the store on one port of two addresses; yields the port."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            await answer(reader, writer)

    with contextlib.closing(a_store()) as store:
        server = await asyncio.start_server(serve, STRANGER, store.listen(STORE, 0))
        yield server.sockets[0].getsockname()[1]
        server.close()


def a_store() -> Store:
    return Store(SECRET, timeouts=Timeouts(first=0.0))


@contextlib.asynccontextmanager
async def linked(listener: Listener, port: int, host: str = "store") -> AsyncIterator[Listener]:
    """Run an agent that connects to its store, for a minute at most."""
    link = TcpLink(Endpoint(host, port), SECRET)
    link.start(listener)
    async with asyncio.timeout(60):
        yield listener
    await link.close()


@pytest.mark.parametrize("answer", [silent, old_store, impostor, hangs_up])
@pytest.mark.parametrize("order", [(STRANGER, STORE), (UNREACHABLE, STRANGER, STRANGER, STORE), (STORE, STRANGER)])
async def test_strangers_at_other_addresses_keep_no_agent_away(
    monkeypatch: pytest.MonkeyPatch, answer: Answer, order: tuple[str, ...]
) -> None:
    async with stranger_beside(answer) as port:
        resolve(monkeypatch, *order)
        async with linked(Listener(), port) as listener:
            assert isinstance(await listener.first_message, messages.Start)


@pytest.mark.parametrize("error", [OSError, TimeoutError, ValueError, RuntimeError])
async def test_an_error_of_the_agent_is_no_lost_connection(error: type[Exception]) -> None:
    class Failing(Listener):
        def on_message(self, message: messages.FromStore) -> None:
            raise error(message)

    raised: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: raised.set_result(context["exception"]))
    with contextlib.closing(a_store()) as store:
        async with linked(Failing(), store.listen(STORE, 0), STORE) as listener:
            assert type(await raised) is error
        assert listener.troubles.empty()


@pytest.mark.parametrize(
    ("found", "why", "reason"),
    [
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "does not resolve (Name", "name_resolution"),
        (None, "no name server answers within", "name_resolution"),
        (UNREACHABLE, "connection refused", "connection"),
    ],
)
async def test_a_name_that_does_not_resolve_is_told_from_a_connection_that_fails(
    monkeypatch: pytest.MonkeyPatch, found: str | Exception | None, why: str, reason: str
) -> None:
    async def lookup() -> Sequence[str]:
        if isinstance(found, Exception):
            raise found
        if found is None:
            await asyncio.Event().wait()
        return [str(found)]

    look_up(monkeypatch, lookup)
    with socket.socket() as free:
        free.bind((UNREACHABLE, 0))
        async with linked(Listener(), free.getsockname()[1]) as listener:
            trouble, stage = await listener.troubles.get()
    assert (why in trouble, stage) == (True, reason)


async def test_a_lookup_that_takes_longer_than_an_attempt_is_used_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Resolvers take 5 s for each lookup if their first name server is gone."""
    lookups, is_answered = itertools.count(), asyncio.Event()

    async def lookup() -> Sequence[str]:
        next(lookups)
        await is_answered.wait()
        return [STORE]

    look_up(monkeypatch, lookup, attempt_seconds=0.05)
    with contextlib.closing(a_store()) as store:
        async with linked(Listener(), store.listen(STORE, 0)) as listener:
            for _ in range(2):
                await listener.troubles.get()
            monkeypatch.undo()
            is_answered.set()
            assert isinstance(await listener.first_message, messages.Start)
    assert next(lookups) == 1


async def test_a_store_gives_up_when_every_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[float] = []

    def fail() -> None:
        calls.append(asyncio.get_running_loop().time())
        raise ValueError("a broken step")

    with contextlib.closing(a_store()) as store:
        monkeypatch.setattr(store.membership, "reconcile", fail)
        monkeypatch.setattr(store.membership, "deadline", lambda: 0.0)
        monkeypatch.setattr("ddp_trainer.launch.rendezvous.store.FAILED_RECONCILE_SECONDS", 0.02)
        store.listen("127.0.0.1", 0)
        store._schedule_reconcile()
        await asyncio.wait_for(store.finished.wait(), 10)
        assert store.failure == "ValueError('a broken step')"
    assert len(calls) == MOST_FAILED_RECONCILES
    assert min(later - sooner for sooner, later in itertools.pairwise(calls)) > 0.015
