"""Parsers of variables' values that follow NCCL and torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

_YES: Final = frozenset({"1", "y", "yes", "t", "true", "on"})


def number(text: str) -> int | None:
    """Return an integer in any base that C reads, or None for any other text.

    >>> [number(each) for each in ("22", "0x10", " -1 ", "010", "x", "")]
    [22, 16, -1, 8, None, None]
    """
    text = text.strip().lower()
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits.startswith("0") and digits.isdigit():
        text = text.replace("0", "0o", 1)
    try:
        return int(text, 0)
    except ValueError:
        return None


def is_one(text: str) -> bool:
    """Return whether a variable is the number 1."""
    return number(text) == 1


def is_zero(text: str) -> bool:
    """Return whether a variable is the number 0."""
    return number(text) == 0


def is_yes(text: str) -> bool:
    """Return whether a switch is on."""
    return text.strip().lower() in _YES


def split_list(text: str, separator: str = ",") -> list[str]:
    """Return the non-empty words of a separated list.

    >>> split_list("a, b,,c")
    ['a', 'b', 'c']
    """
    return [word.strip() for word in text.split(separator) if word.strip()]


def parse_selections(value: str) -> Iterator[tuple[bool, set[str]]]:
    """Yield whether the list is inverted and its words, for each function of ``NCCL_ALGO`` or ``NCCL_PROTO``.

    >>> list(parse_selections("Ring;allreduce:^Tree"))
    [(False, {'ring'}), (True, {'tree'})]
    """
    for part in split_list(value, ";"):
        chosen = part.rpartition(":")[2].strip()
        yield chosen.startswith("^"), {word.lower() for word in split_list(chosen.removeprefix("^"))}


def forces_ll128(protocols: str) -> bool:
    """Return whether a value of ``NCCL_PROTO`` names LL128."""
    return any("ll128" in words and not is_inverted for is_inverted, words in parse_selections(protocols))
