"""Frozen dataclasses as JSON, one per line, and back: data and never code, with a length limit and exact types."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, TypeVar

from ddp_trainer import exact_json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

LINE_BYTES: Final = 1 << 25
"""Longest line: the reports of a thousand nodes."""

Kind = TypeVar("Kind", bound="DataclassInstance")


class WireError(Exception):
    """A line that no preflight would send."""


def encode(message: DataclassInstance) -> bytes:
    """The message as one line."""
    return json.dumps(asdict(message), separators=(",", ":")).encode() + b"\n"


def decode(kind: type[Kind], line: bytes) -> Kind:
    """The message of one line. Raises WireError for anything else."""
    try:
        message: Kind = exact_json.parse(kind, exact_json.loads(line))
    except exact_json.Malformed as error:
        raise WireError(str(error)) from error
    return message
