"""Two processes authenticate to each other exactly if both hold the secret; nothing else passes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ddp_trainer.net.handshake import (
    MOST_BYTES,
    ClientHandshake,
    HandshakeError,
    ServerHandshake,
    WrongSecret,
    authenticate,
    authenticate_client,
)
from ddp_trainer.net.run_secret import RunSecret

KEY, OTHER = RunSecret.random().key("test"), RunSecret.random().key("test")
VERSION = 5


def test_each_side_finds_out_that_the_other_has_another_secret() -> None:
    client, server = ClientHandshake(KEY, VERSION), ServerHandshake(OTHER, VERSION)
    with pytest.raises(WrongSecret):
        client.respond(server.make_challenge(client.knock))
    impostor, honest = ClientHandshake(OTHER, VERSION), ServerHandshake(KEY, VERSION)
    challenge = json.loads(honest.make_challenge(impostor.knock))
    with pytest.raises(WrongSecret):
        honest.verify(json.dumps({"is": "proof", "proof": challenge["proof"]}).encode())  # the server's own, reflected


def test_a_proof_of_one_connection_is_worth_nothing_on_another() -> None:
    client, server = ClientHandshake(KEY, VERSION), ServerHandshake(KEY, VERSION)
    proof = client.respond(server.make_challenge(client.knock))
    again = ServerHandshake(KEY, VERSION)
    again.make_challenge(client.knock)
    with pytest.raises(WrongSecret):
        again.verify(proof)


def test_no_nonce_is_used_twice() -> None:
    greetings = {ClientHandshake(KEY, VERSION).knock for _ in range(1000)}
    challenges = {ServerHandshake(KEY, VERSION).make_challenge(next(iter(greetings))) for _ in range(1000)}
    assert (len(greetings), len(challenges)) == (1000, 1000)


def test_another_version_is_refused_before_any_proof() -> None:
    with pytest.raises(HandshakeError, match="version 4"):
        ServerHandshake(KEY, VERSION).make_challenge(ClientHandshake(KEY, 4).knock)


@given(st.binary(max_size=300) | st.from_regex(rb'\{"is":"(knock|proof|challenge)","[a-z]+":"?[0-9a-f]*"?\}\n'))
def test_whatever_else_is_sent_does_not_pass(line: bytes) -> None:
    for side in (ServerHandshake(KEY, VERSION).make_challenge, ClientHandshake(KEY, VERSION).respond):
        with pytest.raises(HandshakeError):
            side(line)
    server = ServerHandshake(KEY, VERSION)
    server.make_challenge(ClientHandshake(KEY, VERSION).knock)
    with pytest.raises(HandshakeError):
        server.verify(line)


Streams = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def over_tcp(client: Streams, server: Streams) -> tuple[object, object]:
    """What became of each side: its exception, or None."""

    async def talk() -> tuple[object, object]:
        ended: asyncio.Future[object] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            ended.set_result(await outcome(server(reader, writer)))
            writer.close()

        listener = await asyncio.start_server(serve, "127.0.0.1", 0, limit=MOST_BYTES)
        reader, writer = await asyncio.open_connection(*listener.sockets[0].getsockname()[:2], limit=MOST_BYTES)
        client_outcome = await outcome(client(reader, writer))
        writer.close()
        async with listener:
            return client_outcome, await ended

    return asyncio.run(talk())


async def outcome(side: Awaitable[None]) -> object:
    try:
        await side
    except (HandshakeError, OSError) as error:
        return type(error)
    return None


def test_streams_authenticate() -> None:
    def client(key: bytes) -> Streams:
        return lambda reader, writer: authenticate(reader, writer, key, VERSION)

    def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Awaitable[None]:
        return authenticate_client(reader, writer, KEY, VERSION)

    assert over_tcp(client(KEY), server) == (None, None)
    assert over_tcp(client(OTHER), server) == (WrongSecret, HandshakeError)


def test_a_line_that_does_not_end_is_refused_after_4_kib() -> None:
    async def flood(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x" * (64 * MOST_BYTES))
        await writer.drain()

    _, refused = over_tcp(flood, lambda reader, writer: authenticate_client(reader, writer, KEY, VERSION))
    assert refused is HandshakeError
