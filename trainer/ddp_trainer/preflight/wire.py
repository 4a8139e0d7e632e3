"""Frozen dataclasses as JSON, one per line, and back: data and never code, with a length limit and exact types.

The meeting's port can be reached by everything in the network, so what comes in is taken apart field by field.
"""

from __future__ import annotations

import json
from dataclasses import asdict, is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, TypeVar, get_args, get_origin, get_type_hints

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
        data = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {line[:40]!r}") from error
    message: Kind = _parse(kind, data)
    return message


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _parse(kind: Any, data: object) -> Any:
    """``data`` as a ``kind``: a dataclass, an optional, a tuple, a dict, an enum or a scalar."""
    if is_dataclass(kind):
        return _dataclass(kind, data)
    origin = get_origin(kind)
    if origin is UnionType:
        return None if data is None else _parse(get_args(kind)[0], data)
    if origin is tuple and isinstance(data, list):
        return tuple(_parse(get_args(kind)[0], item) for item in data)
    if origin is dict and isinstance(data, dict):
        return {_parse(str, key): _parse(get_args(kind)[1], item) for key, item in data.items()}
    return _scalar(kind, data)


def _dataclass(kind: Any, data: object) -> Any:
    hints = _hints(kind)
    if not isinstance(data, dict) or not data.keys() <= hints.keys():
        raise WireError(f"not a {kind.__name__}: {str(data)[:80]}")
    try:
        return kind(**{name: _parse(hints[name], item) for name, item in data.items()})
    except TypeError as error:
        raise WireError(f"an incomplete {kind.__name__}: {str(data)[:80]}") from error


def _scalar(kind: Any, data: object) -> Any:
    if isinstance(kind, type) and issubclass(kind, StrEnum) and isinstance(data, str) and data in list(kind):
        return kind(data)
    if kind is float and type(data) in {int, float}:
        return float(str(data))
    if type(data) is not kind:
        raise WireError(f"{str(data)[:40]!r} where {getattr(kind, '__name__', kind)} belongs")
    return data
