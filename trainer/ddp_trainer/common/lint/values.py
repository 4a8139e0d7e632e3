"""Reading values as NCCL and torch do."""

from __future__ import annotations

from typing import Final

_YES: Final = frozenset({"1", "y", "yes", "t", "true", "on"})
_NO: Final = frozenset({"0", "n", "no", "f", "false", "off"})


def number(text: str) -> int | None:
    """A whole number in any base that C reads; None for anything else.

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


def is_yes(text: str) -> bool:
    """A switch that is on."""
    return text.strip().lower() in _YES


def is_no(text: str) -> bool:
    """A switch that is off."""
    return text.strip().lower() in _NO


def words(text: str, separator: str = ",") -> list[str]:
    """Separated, without empty ones.

    >>> words("a, b,,c")
    ['a', 'b', 'c']
    """
    return [word.strip() for word in text.split(separator) if word.strip()]
