"""JSON from a network as frozen dataclasses with exactly the declared fields, types and bounds.

Every host in the network can reach a port, so a line is data, never code, and is parsed field by field.
:func:`decode` and :func:`encode` convert messages, :func:`parse` any value. A field declares its bounds with
``Annotated``: :class:`Bounds` for a number or a length, :class:`Matching` for the characters of a string. Standard
library only.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


class OutOfBounds(ValueError):
    """A value outside the declared bounds."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Smallest and largest allowed number, or length of a string, tuple or dict; both are included."""

    least: float
    most: float

    def check(self, value: Any) -> None:
        """Raise OutOfBounds for a value outside of the bounds. None, the value of an optional field, passes."""
        if value is None:
            return
        size = value if isinstance(value, (int, float)) else len(value)
        if not self.least <= size <= self.most:
            raise OutOfBounds(f"{str(value)[:40]!r} is not within {self.least:g} to {self.most:g}")


@dataclass(frozen=True, slots=True)
class Matching:
    """Regular expression that a whole string must match."""

    pattern: str

    def check(self, value: Any) -> None:
        """Raise OutOfBounds for a string that does not match. None passes."""
        if value is not None and not re.fullmatch(self.pattern, value):
            raise OutOfBounds(f"{str(value)[:40]!r} does not match {self.pattern}")


MOST_INTEGER: Final = (1 << 53) - 1
"""Largest integer that every JSON reader represents exactly (RFC 8259, section 6)."""


class DecodeError(Exception):
    """The data does not match the declaration; the message gives the value and the expected type."""


def loads(line: bytes) -> object:
    """Return the JSON value of a line.

    Raises:
        DecodeError: If the line is not JSON.
    """
    try:
        return json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise DecodeError(f"not JSON: {line[:40]!r}") from error


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and the infinities are neither valid JSON nor valid timestamps


def encode(message: DataclassInstance) -> bytes:
    """Return a message as one line of JSON, with the lower-case name of its class as ``is``."""
    return json.dumps({"is": type(message).__name__.lower(), **_plain(message)}, separators=(",", ":")).encode() + b"\n"


def decode(kinds: Mapping[str, type], line: bytes) -> Any:
    """Return the message of one line.

    Args:
        kinds: Class of a message by its lower-case name.
        line: Line of JSON, as :func:`encode` writes it.

    Raises:
        DecodeError: If the line is not a message of these classes.
    """
    data = loads(line)
    if not isinstance(data, dict) or not isinstance(data.get("is"), str) or data["is"] not in kinds:
        raise DecodeError(f"not a message: {line[:40]!r}")
    return parse(kinds[data.pop("is")], data)


def _plain(value: DataclassInstance) -> dict[str, object]:
    return {member.name: _plain_value(getattr(value, member.name)) for member in fields(value)}


def _plain_value(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(value)
    return [_plain_value(item) for item in value] if isinstance(value, tuple) else value


def parse(kind: Any, data: object) -> Any:
    """Return ``data`` as a ``kind``: a dataclass, an optional, a tuple, a dict, an enum or a scalar.

    Raises:
        DecodeError: If the data does not match.
    """
    if is_dataclass(kind):
        return _dataclass(kind, data)
    origin = get_origin(kind)
    if origin is Annotated:
        inner, *notes = get_args(kind)
        return _within(notes, parse(inner, data))
    if origin in {Union, UnionType}:
        return None if data is None else parse(next(arm for arm in get_args(kind) if arm is not type(None)), data)
    if origin is tuple and isinstance(data, list):
        return tuple(parse(get_args(kind)[0], item) for item in data)
    if origin is dict and isinstance(data, dict):
        keys, values = get_args(kind)
        return {parse(keys, key): parse(values, item) for key, item in data.items()}
    return _scalar(kind, data)


def _within(notes: list[Any], value: Any) -> Any:
    for note in notes:
        if isinstance(note, Bounds | Matching):
            try:
                note.check(value)
            except OutOfBounds as error:
                raise DecodeError(str(error)) from error
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind, include_extras=True)


def _dataclass(kind: Any, data: object) -> Any:
    hints = _hints(kind)
    if not isinstance(data, dict) or not data.keys() <= hints.keys():
        raise DecodeError(f"not a {kind.__name__}: {str(data)[:80]}")
    try:
        return kind(**{name: parse(hints[name], item) for name, item in data.items()})
    except TypeError as error:
        raise DecodeError(f"an incomplete {kind.__name__}: {str(data)[:80]}") from error


def _scalar(kind: Any, data: object) -> Any:
    if isinstance(kind, type) and issubclass(kind, StrEnum) and isinstance(data, str) and data in list(kind):
        return kind(data)
    # Python accepts a bool as an int; JSON has separate types. An integer is a valid float.
    if kind is float and type(data) in {int, float} and math.isfinite(number := float(str(data))):
        return number
    if type(data) is int and abs(data) > MOST_INTEGER:
        raise DecodeError("an integer of more than 53 bits")
    if type(data) is not kind or kind is float:
        raise DecodeError(f"{str(data)[:40]!r} where {getattr(kind, '__name__', kind)} belongs")
    if isinstance(data, str) and not data.isascii():
        _check_unicode(data)
    return data


def _check_unicode(text: str) -> None:
    """Raise DecodeError for a lone surrogate: JSON can represent one, but no file, terminal or environment can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DecodeError(f"{text[:40]!r} is not Unicode text") from error
