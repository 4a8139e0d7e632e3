"""Limits of a listener: their arithmetic, and servers with real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from ddp_trainer.net import limited_server
from tests.support.programs import captured


@pytest.mark.parametrize(
    ("address", "client"), [("192.0.2.7", "192.0.2.7"), ("::1", ""), ("::ffff:127.0.0.1", ""), ("", "")]
)
def test_connections_count_by_the_host_that_they_come_from(address: str, client: str) -> None:
    assert limited_server.client_of(address) == client


def test_the_loopback_may_use_all_of_the_total() -> None:
    limits = limited_server.ConnectionLimits(total=8, per_address=2)
    assert [limits.try_acquire("127.0.0.1") for _ in range(9)] == [True] * 8 + [False]


def test_no_order_of_connections_passes_a_limit() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    limits = limited_server.ConnectionLimits(total=6, per_address=3)
    addresses = ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::2", "127.0.0.1"]
    held: list[str] = []
    for _ in range(5000):
        if held and draw.random() < 0.45:
            limits.release(held.pop(draw.randrange(len(held))))
        elif limits.try_acquire(address := draw.choice(addresses)):
            held.append(address)
        by_client = Counter(map(limited_server.client_of, held))
        assert len(held) <= 6
        assert all(count <= 3 for client, count in by_client.items() if client)
        assert limits.is_full == (len(held) == 6)


@pytest.mark.parametrize(
    ("soft", "hard", "wanted", "fits"),
    [(256, 256, 4096, 192), (128, 512, 400, 400), (256, 256, 64, 64), (32, 32, 64, 1)],
)
def test_connections_fit_into_the_limit_of_open_files(soft: int, hard: int, wanted: int, fits: int) -> None:
    script = (
        "import resource, sys; from ddp_trainer.net.limited_server import apply_fd_limit;"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}));"
        f"print(apply_fd_limit({wanted}), resource.getrlimit(resource.RLIMIT_NOFILE)[1])"
    )
    output = captured([sys.executable, "-c", script], check=True).stdout
    assert output.split() == [str(fits), str(hard)]


def test_a_log_writes_its_lines_a_minute_and_then_what_it_left_out() -> None:
    now = 1000.0
    lines: list[str] = []
    log = limited_server.RateLimitedLog(lines_per_minute=3, write=lines.append, clock=lambda: now)
    for number in range(100):
        log.write(f"line {number}")
    assert lines == ["line 0", "line 1", "line 2"]
    now += limited_server.WINDOW_SECONDS
    log.write("later")
    log.flush()  # nothing was left out since
    assert (len(lines), lines[3].split()[0], lines[4]) == (5, "97", "later")


BUFFER_BYTES = 4096
Serve = Callable[[limited_server.Connection], Awaitable[None]]
Peer = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def echo_lines(connection: limited_server.Connection) -> None:
    """Answer every line with itself, and keep a peer that sends ``member``."""
    while True:
        line = await connection.reader.readuntil(b"\n")
        connection.is_kept = connection.is_kept or line == b"member\n"
        connection.writer.write(line)


class Listening:
    """A server under test, the lines of its log, and its address."""

    def __init__(self, server: limited_server.LimitedServer, address: tuple[str, int], lines: list[str]) -> None:
        self.server = server
        self.address = address
        self.lines = lines
        self._clients: list[asyncio.StreamWriter] = []

    async def connect(self) -> Peer:
        peer = await asyncio.open_connection(*self.address)
        self._clients.append(peer[1])
        return peer

    async def leave(self) -> None:
        for writer in self._clients:
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def listening(serve: Serve = echo_lines, *, total: int = 8) -> AsyncIterator[Listening]:
    lines: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    limits, log = (
        limited_server.ConnectionLimits(total=total, per_address=8),
        limited_server.RateLimitedLog(lines_per_minute=3, write=lines.append),
    )
    server = limited_server.LimitedServer(listener, serve, limits=limits, log=log, buffer_bytes=BUFFER_BYTES)
    server.start()
    async with asyncio.timeout(60):
        here = Listening(server, listener.getsockname(), lines)
        yield here
        await server.close()
        await here.leave()
    assert len(server._places) == 0


async def exchange(connection: Peer, line: bytes) -> bytes:
    """Send a line and return the answer; empty if the server has closed the connection."""
    reader, writer = connection
    try:
        writer.write(line)
        return await reader.readline()
    except ConnectionError:
        return b""


async def closed(connection: Peer) -> None:
    """Wait until the server has closed this connection."""
    with contextlib.suppress(ConnectionError):
        assert await connection[0].read() == b""


async def test_a_server_that_is_full_of_kept_ones_closes_new_ones_with_few_lines() -> None:
    async with listening(total=2) as here:
        members = [await here.connect() for _ in range(2)]
        for peer in members:
            assert await exchange(peer, b"member\n") == b"member\n"
        for _ in range(50):
            await closed(await here.connect())
        assert [await exchange(peer, b"hi\n") for peer in members] == [b"hi\n"] * 2
        assert len(here.lines) == 3
    assert "47" in here.lines[-1]  # those that were left out are counted


async def test_what_a_peer_sends_unread_is_bounded() -> None:
    async def never_reads(_: limited_server.Connection) -> None:
        await asyncio.Event().wait()

    async with listening(never_reads) as here:
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
        client.settimeout(0.5)  # after it the server takes no more
        await asyncio.to_thread(client.connect, here.address)
        sent = 0
        with contextlib.suppress(TimeoutError):
            while sent < 1 << 20:
                sent += await asyncio.to_thread(client.send, b"x" * 1024)
        assert sent <= 16 * BUFFER_BYTES
        client.close()


async def test_a_line_longer_than_it_may_be_ends_the_connection() -> None:
    async with listening() as here:
        connection = await here.connect()
        connection[1].write(b"x" * (4 * BUFFER_BYTES))
        await closed(connection)


async def test_an_unexpected_error_is_logged_with_the_address_and_ends_one_connection() -> None:
    async def fail(connection: limited_server.Connection) -> None:
        if await connection.reader.readuntil(b"\n") == b"fail\n":
            raise KeyError("oops")
        connection.writer.write(b"well\n")

    async with listening(fail) as here:
        bad = await here.connect()
        bad[1].write(b"fail\n")
        await closed(bad)
        assert await exchange(await here.connect(), b"hi\n") == b"well\n"
        (line,) = here.lines
        assert all(word in line for word in ("127.0.0.1", "oops"))


def test_a_server_that_closes_ends_all_connections_without_a_word(capfd: pytest.CaptureFixture[str]) -> None:
    async def run() -> None:
        async with listening(total=16) as here:
            for _ in range(16):
                assert await exchange(await here.connect(), b"hi\n") == b"hi\n"
            assert len(here.server._places) == 16
        assert here.lines == []

    asyncio.run(run(), debug=True)
    assert capfd.readouterr().err == ""
