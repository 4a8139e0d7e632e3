"""Frozen dataclasses as JSON, one per line, and back: data and never code, with a length limit and exact types."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, TypeVar

from ddp_trainer.net import strict_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LINE_BYTES: Final = 1 << 25
"""Longest line after the handshake, in bytes: the reports of a thousand nodes."""
HANDSHAKE_VERSION: Final = 2
KEY_PURPOSE: Final = "preflight"
"""Purpose of the key by which preflights authenticate, see :meth:`ddp_trainer.net.run_secret.RunSecret.key`."""

Kind = TypeVar("Kind", bound="DataclassInstance")


class WireError(Exception):
    """A line that no preflight would send."""


def encode(message: DataclassInstance) -> bytes:
    """The message as one line."""
    return json.dumps(asdict(message), separators=(",", ":")).encode() + b"\n"


def decode(kind: type[Kind], line: bytes) -> Kind:
    """The message of one line. Raises WireError for anything else."""
    try:
        message: Kind = strict_json.parse(kind, strict_json.loads(line))
    except strict_json.Malformed as error:
        raise WireError(str(error)) from error
    return message


async def read_line(reader: asyncio.StreamReader) -> bytes:
    """Return the next line, which may be longer than the reader's limit; empty at the end of the connection.

    Raises:
        WireError: For a line of more than :data:`LINE_BYTES`.
        OSError: If the connection breaks.
    """
    line = bytearray()
    while not line.endswith(b"\n"):
        try:
            line += await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError as error:
            line += await reader.readexactly(error.consumed)
        except asyncio.IncompleteReadError:
            return b""
        if len(line) > LINE_BYTES:
            raise WireError(f"a line of more than {LINE_BYTES} bytes")
    return bytes(line)
