"""Probes of the ports of every other node: connect, as ``nc -vz`` does, and verify the peer's token.

:func:`probe` runs all probes of a node.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Iterator
from typing import Final

from ddp_trainer.net.addresses import is_loopback
from ddp_trainer.net.asyncio_utils import hang_up
from ddp_trainer.net.handshake import MOST_BYTES, HandshakeError
from ddp_trainer.net.strict_json import DecodeError
from ddp_trainer.preflight.listener import read_banner
from ddp_trainer.preflight.schema import Outcome, Probe, ProbeKind, Report

CONNECT_SECONDS: Final = 5.0
"""Timeout in seconds. A lost SYN is repeated after 1 s and after 3 s, so this allows two losses."""
_AT_ONCE: Final = 64
_NO_ROUTE: Final = {errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT, errno.EINVAL}


_Door = tuple[str, ProbeKind, str, int]
"""Token of the expected peer, or empty to accept any; purpose; address; port."""


async def probe(own: Report, reports: tuple[Report, ...], key: bytes | None) -> tuple[Probe, ...]:
    """Probe all ports of all peers from this node, :data:`_AT_ONCE` in parallel."""
    limit = asyncio.Semaphore(_AT_ONCE)

    async def probe_target(target: str, purpose: ProbeKind, address: str, port: int) -> Probe:
        async with limit:
            outcome = await probe_port(address, port, target, key)
        return Probe(source=own.token, target=target, purpose=purpose, address=address, port=port, outcome=outcome)

    doors: list[_Door] = [("", ProbeKind.ENDPOINT, address, own.endpoint_port) for address in own.endpoint.addresses]
    for peer in reports:
        if peer.token != own.token:
            doors += _ports_to_probe(own, peer)
    return tuple(await asyncio.gather(*(probe_target(*door) for door in doors)))


def _ports_to_probe(own: Report, peer: Report) -> Iterator[_Door]:
    """Yield the ports of a peer that the ranks of other nodes will need."""
    if peer.route:
        yield peer.token, ProbeKind.RANDOM, peer.route, peer.listening.random
        if peer.listening.rendezvous:
            yield peer.token, ProbeKind.RENDEZVOUS, peer.route, peer.listening.rendezvous
    for purpose, chosen in ((ProbeKind.GLOO, peer.gloo), (ProbeKind.NCCL, peer.nccl)):
        is_elsewhere = chosen.address not in {"", peer.route}
        # No probe for a loopback address, which is local everywhere, or for a node on the same machine.
        if is_elsewhere and not is_loopback(chosen.address) and peer.machine != own.machine:
            yield peer.token, purpose, chosen.address.partition("%")[0], peer.listening.random


async def probe_port(address: str, port: int, token: str, key: bytes | None) -> Outcome:
    """Connect and verify the peer; an empty ``token`` accepts any peer."""
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            reader, writer = await asyncio.open_connection(address, port, limit=MOST_BYTES)
            try:
                is_expected = not token or (await read_banner(reader, writer, key)).token == token
                return Outcome.OK if is_expected else Outcome.STRANGER
            finally:
                await hang_up(writer)
    except (DecodeError, HandshakeError):
        return Outcome.STRANGER
    except TimeoutError:
        return Outcome.TIMED_OUT
    except OSError as error:
        return outcome_of(error)


def outcome_of(error: OSError) -> Outcome:
    """Return the outcome of a failed connection attempt. Unknown errors count as refused."""
    if isinstance(error, TimeoutError) or error.errno == errno.ETIMEDOUT:
        return Outcome.TIMED_OUT
    return Outcome.NO_ROUTE if error.errno in _NO_ROUTE else Outcome.REFUSED
