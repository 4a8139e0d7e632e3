"""Formatting of parameter counts, bytes, times and shares."""

from __future__ import annotations

from typing import Final

_COUNTS: Final = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
_TIMES: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def count(number: float) -> str:
    """Format a count.

    >>> count(6_738_415_616), count(124_000_000), count(12)
    ('6.74B', '124M', '12')
    """
    for size, unit in _COUNTS:
        if number >= size:
            return f"{number / size:.3g}{unit}"
    return f"{number:.0f}"


def format_bytes(size: float) -> str:
    """Format an amount of memory.

    >>> format_bytes(80 * 2**30), format_bytes(2**29)
    ('80.0 GiB', '0.50 GiB')
    """
    amount = size / 2**30
    return f"{amount:.1f} GiB" if amount >= 1 else f"{amount:.2f} GiB"


def seconds(time: float) -> str:
    """Format a time.

    >>> seconds(12.345), seconds(0.0421)
    ('12.3 s', '42.1 ms')
    """
    size, unit = next(((size, unit) for size, unit in _TIMES if time >= size), _TIMES[-1])
    value = time / size
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"


def percent(share: float) -> str:
    """Format a share of 1 as a percentage.

    >>> percent(0.256)
    '26 %'
    """
    return f"{round(share * 100)} %"
