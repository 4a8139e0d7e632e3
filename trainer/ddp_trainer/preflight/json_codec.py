"""Codec for messages between preflights: frozen dataclasses as JSON, one per line, with exact types and a length
limit.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, TypeVar

from ddp_trainer.net import strict_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LINE_BYTES: Final = 1 << 25
"""Longest line after the handshake in bytes, enough for the reports of a thousand nodes."""
HANDSHAKE_VERSION: Final = 2
KEY_PURPOSE: Final = "preflight"
"""Purpose of the authentication key of preflights, see :meth:`ddp_trainer.net.run_secret.RunSecret.key`."""

Kind = TypeVar("Kind", bound="DataclassInstance")


def encode(message: DataclassInstance) -> bytes:
    """Return the message as one line."""
    return json.dumps(asdict(message), separators=(",", ":")).encode() + b"\n"


def decode(kind: type[Kind], line: bytes) -> Kind:
    """Return the message in one line.

    Raises:
        DecodeError: The line is not a message of this kind.
    """
    message: Kind = strict_json.parse(kind, strict_json.loads(line))
    return message


async def read_line(reader: asyncio.StreamReader, most_bytes: int = LINE_BYTES) -> bytes:
    """Return the next line, which may be longer than the reader's limit; empty at the end of the connection.

    Raises:
        DecodeError: The line has more than ``most_bytes``.
        OSError: The connection broke.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        try:
            line += await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            line += await reader.readexactly(error.consumed)
        except asyncio.IncompleteReadError:
            return b""
        if len(line) > most_bytes:
            raise strict_json.DecodeError(f"a line of more than {most_bytes} bytes")
    return bytes(line)
