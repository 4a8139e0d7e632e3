"""Probes of the ports of every other node: connect, as ``nc -vz`` does, and verify the peer's token.

:func:`probe` runs all probes of a node.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ddp_trainer.net.addresses import is_loopback
from ddp_trainer.net.asyncio_utils import hang_up
from ddp_trainer.net.handshake import MOST_BYTES, HandshakeFailed, authenticate
from ddp_trainer.preflight.json_codec import HANDSHAKE_VERSION, WireError, decode, read_line
from ddp_trainer.preflight.listener import Banner
from ddp_trainer.preflight.schema import Outcome, Probe, Purpose, Report

CONNECT_SECONDS: Final = 5.0
"""Timeout in seconds. A lost SYN is repeated after 1 s and after 3 s, so this allows two losses."""
_AT_ONCE: Final = 64
_NO_ROUTE: Final = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL}


@dataclass(frozen=True, slots=True)
class _Door:
    token: str
    """Token of the expected peer; empty to accept any."""
    purpose: Purpose
    address: str
    port: int


async def probe(own: Report, reports: tuple[Report, ...], key: bytes | None) -> tuple[Probe, ...]:
    """Probe all ports of all peers from this node, :data:`_AT_ONCE` in parallel."""
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
    """Yield the ports of a peer that the ranks of other nodes will need."""
    if peer.route:
        yield _Door(peer.token, Purpose.RANDOM, peer.route, peer.listening.random)
        if peer.listening.rendezvous:
            yield _Door(peer.token, Purpose.RENDEZVOUS, peer.route, peer.listening.rendezvous)
    for purpose, chosen in ((Purpose.GLOO, peer.gloo), (Purpose.NCCL, peer.nccl)):
        is_elsewhere = chosen.address not in {"", peer.route}
        # No probe for a loopback address, which is local everywhere, or for a node on the same machine.
        if is_elsewhere and not is_loopback(chosen.address) and peer.machine != own.machine:
            yield _Door(peer.token, purpose, chosen.address.partition("%")[0], peer.listening.random)


async def knock(address: str, port: int, token: str, key: bytes | None) -> Outcome:
    """Connect and verify the peer; an empty ``token`` accepts any peer."""
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
    """Return the outcome of a failed connection attempt. Unknown errors count as refused."""
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
