"""Accessors for untrusted objects: a value of an unexpected type counts as missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubectl_ddp.values.quantity import BadValue, Memory


def mapping(value: object) -> Mapping[str, Any]:
    """Return ``value`` if it is a mapping, else an empty mapping."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """Return the mappings in a list."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def scalar_list(value: object) -> list[str]:
    """Return the strings and integers of a list as strings."""
    return [str(each) for each in value if isinstance(each, str | int)] if isinstance(value, list) else []


def string_mapping(value: object) -> dict[str, str]:
    """Return a flat mapping, such as labels, with keys and values as strings."""
    return {str(key): str(item) for key, item in mapping(value).items() if not isinstance(item, Mapping | list)}


def number(value: object, default: int = 0) -> int:
    """Return an integer, which a manifest may also write as a string.

    >>> number(3), number("8"), number("many", 1), number(None, 1)
    (3, 8, 1, 1)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else default


def size_bytes(value: object) -> int | None:
    """Return an amount of memory in bytes, or None if it is missing or invalid.

    >>> size_bytes("2Gi"), size_bytes(None)
    (2147483648, None)
    """
    try:
        return Memory.parse_quantity(str(value)).size_bytes
    except BadValue:
        return None
