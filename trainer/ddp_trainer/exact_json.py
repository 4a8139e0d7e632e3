"""JSON that came over a network, as frozen dataclasses: exactly the declared fields, of exactly the declared types.

Ports of ours can be reached by everything in the network, so a line is data and never code, and is taken apart field by
field. Standard library only.
"""

from __future__ import annotations

import json
import math
from dataclasses import is_dataclass
from enum import StrEnum
from functools import cache
from types import UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


class Malformed(Exception):
    """Not what was declared; the message says what stands where something else belongs."""


def loads(line: bytes) -> object:
    """One JSON value. Raises Malformed."""
    try:
        return json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not JSON: {line[:40]!r}") from error


def _no_constant(name: str) -> None:
    raise ValueError(name)  # NaN and the infinities are no JSON, and no timestamp


def parse(kind: Any, data: object) -> Any:
    """``data`` as a ``kind``: a dataclass, an optional, a tuple, a dict, an enum or a scalar. Raises Malformed."""
    if is_dataclass(kind):
        return _dataclass(kind, data)
    origin = get_origin(kind)
    if origin in {Union, UnionType}:
        return None if data is None else parse(next(arm for arm in get_args(kind) if arm is not type(None)), data)
    if origin is tuple and isinstance(data, list):
        return tuple(parse(get_args(kind)[0], item) for item in data)
    if origin is dict and isinstance(data, dict):
        return {parse(str, key): parse(get_args(kind)[1], item) for key, item in data.items()}
    return _scalar(kind, data)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _dataclass(kind: Any, data: object) -> Any:
    hints = _hints(kind)
    if not isinstance(data, dict) or not data.keys() <= hints.keys():
        raise Malformed(f"not a {kind.__name__}: {str(data)[:80]}")
    try:
        return kind(**{name: parse(hints[name], item) for name, item in data.items()})
    except TypeError as error:
        raise Malformed(f"an incomplete {kind.__name__}: {str(data)[:80]}") from error


def _scalar(kind: Any, data: object) -> Any:
    if isinstance(kind, type) and issubclass(kind, StrEnum) and isinstance(data, str) and data in list(kind):
        return kind(data)
    # bool is an int to Python, and an int is a good float; JSON's own types are told apart here.
    if kind is float and type(data) in {int, float} and math.isfinite(number := float(str(data))):
        return number
    if type(data) is not kind or kind is float:
        raise Malformed(f"{str(data)[:40]!r} where {getattr(kind, '__name__', kind)} belongs")
    return data
