"""Knocking at the ports of every other node, as ``nc -vz`` would, and listening to who answers."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ddp_trainer.net.asyncio_utils import hang_up
from ddp_trainer.net.handshake import MOST_BYTES, HandshakeFailed, authenticate
from ddp_trainer.preflight.json_codec import HANDSHAKE_VERSION, WireError, decode, read_line
from ddp_trainer.preflight.listener import Banner
from ddp_trainer.preflight.names import is_loopback
from ddp_trainer.preflight.schema import Outcome, Probe, Purpose, Report

CONNECT_SECONDS: Final = 5.0
"""A lost SYN is sent again after 1 s and after 3 s, so this allows for two losses."""
_AT_ONCE: Final = 64
_NO_ROUTE: Final = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class _Door:
    token: str
    """Of who should answer; empty for anybody."""
    purpose: Purpose
    address: str
    port: int


async def probe(own: Report, reports: tuple[Report, ...], key: bytes | None) -> tuple[Probe, ...]:
    """All doors of all peers, from here, :data:`_AT_ONCE` at a time."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def knock_at(door: _Door) -> Probe:
        async with limit:
            outcome = await knock(door.address, door.port, door.token, key)
        return Probe(
            source=own.token,
            target=door.token,
            purpose=door.purpose,
            address=door.address,
            port=door.port,
            outcome=outcome,
        )

    doors = [*_endpoint(own), *(door for peer in reports if peer.token != own.token for door in _doors(own, peer))]
    return tuple(await asyncio.gather(*map(knock_at, doors)))


def _endpoint(own: Report) -> Iterator[_Door]:
    for address in own.endpoint.addresses:
        yield _Door("", Purpose.ENDPOINT, address, own.endpoint_port)


def _doors(own: Report, peer: Report) -> Iterator[_Door]:
    """What the ranks of other nodes will need of this one."""
    if peer.route:
        yield _Door(peer.token, Purpose.RANDOM, peer.route, peer.listening.random)
        if peer.listening.rendezvous:
            yield _Door(peer.token, Purpose.RENDEZVOUS, peer.route, peer.listening.rendezvous)
    for purpose, chosen in ((Purpose.GLOO, peer.gloo), (Purpose.NCCL, peer.nccl)):
        is_elsewhere = chosen.address not in {"", peer.route}
        # Loopback is another machine from every machine, and one machine reaches itself: both need no knock.
        if is_elsewhere and not is_loopback(chosen.address) and peer.machine != own.machine:
            yield _Door(peer.token, purpose, chosen.address.partition("%")[0], peer.listening.random)


async def knock(address: str, port: int, token: str, key: bytes | None) -> Outcome:
    """Connect, and read who is there; an empty ``token`` takes anybody."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(address, port, limit=MOST_BYTES)
            try:
                return Outcome.OK if not token or await _is(reader, writer, token, key) else Outcome.STRANGER
            finally:
                await hang_up(writer)
    except TimeoutError:
        return Outcome.TIMED_OUT
    except OSError as error:
        return outcome_of(error)


def outcome_of(error: OSError) -> Outcome:
    """What an attempt to connect came to; everything that is not better known counts as refused."""
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return Outcome.TIMED_OUT
    return Outcome.NO_ROUTE if error.errno in _NO_ROUTE else Outcome.REFUSED


async def _is(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str, key: bytes | None) -> bool:
    try:
        if key is not None:
            await authenticate(reader, writer, key, HANDSHAKE_VERSION)
        return decode(Banner, await read_line(reader)).token == token
    except (WireError, HandshakeFailed):
        return False
