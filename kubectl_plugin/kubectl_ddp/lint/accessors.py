"""Reading objects that anybody may have written: what is of another type than it should be counts as not there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubectl_ddp.spec.quantity import BadValue, Memory


def mapping(value: object) -> Mapping[str, Any]:
    """A map, or an empty one."""
    return value if isinstance(value, Mapping) else {}


def mappings(value: object) -> list[Mapping[str, Any]]:
    """The maps of a list."""
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def scalar_list(value: object) -> list[str]:
    """The scalars of a list, as text."""
    return [str(each) for each in value if isinstance(each, str | int)] if isinstance(value, list) else []


def string_mapping(value: object) -> dict[str, str]:
    """Labels and the like."""
    return {str(key): str(item) for key, item in mapping(value).items() if not isinstance(item, Mapping | list)}


def number(value: object, default: int = 0) -> int:
    """A whole number, which a manifest may also write as text.

    >>> number(3), number("8"), number("many", 1), number(None, 1)
    (3, 8, 1, 1)
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    return int(value) if isinstance(value, str) and value.isdecimal() else default


def size_bytes(value: object) -> int | None:
    """An amount of memory; None for none.

    >>> size_bytes("2Gi"), size_bytes(None)
    (2147483648, None)
    """
    try:
        return Memory.parse_quantity(str(value)).size_bytes
    except BadValue:
        return None
