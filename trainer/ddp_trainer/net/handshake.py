"""Mutual authentication of two processes of one run, before any other message.

::

    client ──▶ server   knock      {"is": "knock", "version": 5, "nonce": N_c}
    server ──▶ client   challenge  {"is": "challenge", "nonce": N_s, "proof": HMAC(key, "server" N_c N_s)}
    client ──▶ server   proof      {"is": "proof", "proof": HMAC(key, "client" N_c N_s)}

HMAC-SHA-256 with a key that :class:`~ddp_trainer.net.run_secret.RunSecret` derives for one kind of listener. Nonces are
256 random bits, made for one connection. A server sends nothing before a knock. :class:`ClientHandshake` and
:class:`ServerHandshake` do no I/O; :func:`authenticate` and :func:`authenticate_client` run them over asyncio streams.
The handshake authenticates the peer of a connection. It does not protect later messages from a host on the path.
Standard library only.
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeVar

from ddp_trainer.common import strict_json
from ddp_trainer.common.strict_json import Bounds, Matching

MOST_BYTES: Final = 4096
"""Longest line before the proof, in bytes."""
SECONDS: Final = 5.0
"""Time limit of a whole handshake."""

_Message = TypeVar("_Message")
_Hex = Annotated[str, Bounds(64, 64), Matching("[0-9a-f]+")]


class HandshakeError(Exception):
    """The peer is not a process of this run, or has another version; the message completes a sentence."""


class WrongSecret(HandshakeError):
    """The peer uses the protocol but has another secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Knock:
    """First line of a client."""

    version: Annotated[int, Bounds(0, 1 << 31)]
    nonce: _Hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """Answer of a server, with its own proof."""

    nonce: _Hex
    proof: _Hex


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """Second line of a client."""

    proof: _Hex


def _decode(kind: type[_Message], line: bytes) -> _Message:
    try:
        message: _Message = strict_json.decode({kind.__name__.lower(): kind}, line)
    except strict_json.DecodeError:
        raise HandshakeError("it does not authenticate") from None
    return message


def _compute_proof(key: bytes, side: Literal["client", "server"], client_nonce: str, server_nonce: str) -> str:
    return hmac.digest(key, f"{side} {client_nonce} {server_nonce}".encode(), "sha256").hex()


class ClientHandshake:
    """Client side: send :attr:`first_message`, then the result of :meth:`respond` for the server's line."""

    def __init__(self, key: bytes, version: int) -> None:
        self._key = key
        self._nonce = secrets.token_hex(32)
        self.first_message = strict_json.encode(Knock(version=version, nonce=self._nonce))

    def respond(self, line: bytes) -> bytes:
        """Return the proof to send.

        Raises:
            HandshakeError: If the line is not a challenge.
            WrongSecret: If the server does not have the secret.
        """
        challenge = _decode(Challenge, line)
        if not hmac.compare_digest(_compute_proof(self._key, "server", self._nonce, challenge.nonce), challenge.proof):
            raise WrongSecret("it has another secret")
        return strict_json.encode(Proof(proof=_compute_proof(self._key, "client", self._nonce, challenge.nonce)))


class ServerHandshake:
    """Server side: answer the first line with :meth:`make_challenge`, and check the second with :meth:`verify`."""

    def __init__(self, key: bytes, version: int) -> None:
        self._key = key
        self._version = version
        self._nonce = secrets.token_hex(32)
        self._client_nonce = ""

    @property
    def expects_proof(self) -> bool:
        """True if the next line is the client's proof."""
        return bool(self._client_nonce)

    def make_challenge(self, line: bytes) -> bytes:
        """Return the challenge to send.

        Raises:
            HandshakeError: If the line is not a knock of this version.
        """
        request = _decode(Knock, line)
        if request.version != self._version:
            raise HandshakeError(f"it has version {request.version} of the protocol instead of {self._version}")
        self._client_nonce = request.nonce
        proof = _compute_proof(self._key, "server", request.nonce, self._nonce)
        return strict_json.encode(Challenge(nonce=self._nonce, proof=proof))

    def verify(self, line: bytes) -> None:
        """Check that the client has the secret.

        Raises:
            WrongSecret: If the client has another secret.
            HandshakeError: If the line is not a proof.
        """
        given = _decode(Proof, line)
        if not hmac.compare_digest(_compute_proof(self._key, "client", self._client_nonce, self._nonce), given.proof):
            raise WrongSecret("it has another secret")


async def authenticate(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, version: int, seconds: float = SECONDS
) -> None:
    """Authenticate to a server, and authenticate the server.

    Args:
        reader: Stream from the server.
        writer: Stream to the server.
        key: Key of the server's kind of listener.
        version: Version of the protocol that follows.
        seconds: Time limit.

    Raises:
        HandshakeError: If the server does not belong to this run.
        TimeoutError: If the server does not answer in time.
        OSError: If the connection breaks.
    """
    handshake = ClientHandshake(key, version)
    writer.write(handshake.first_message)
    async with asyncio.timeout(seconds):
        writer.write(handshake.respond(await _line(reader)))


async def authenticate_client(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, key: bytes, version: int
) -> None:
    """Authenticate a client; raises the same errors as :func:`authenticate`."""
    handshake = ServerHandshake(key, version)
    async with asyncio.timeout(SECONDS):
        writer.write(handshake.make_challenge(await _line(reader)))
        handshake.verify(await _line(reader))


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line.

    Raises:
        HandshakeError: If the line is too long, or the connection ends first.
    """
    try:
        line = await reader.readuntil(b"\n")
    except asyncio.IncompleteReadError:
        raise HandshakeError("it closed the connection during the handshake") from None
    except asyncio.LimitOverrunError:
        raise HandshakeError("it does not authenticate") from None
    if len(line) > MOST_BYTES:
        raise HandshakeError("it does not authenticate")
    return line
