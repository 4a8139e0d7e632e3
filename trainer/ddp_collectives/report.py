"""Output of results: rows of a table, sentences, and the versioned JSON that ``--compare`` reads."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from ddp_collectives.comparison import Change
from ddp_collectives.result import API_VERSION, KIND, Result, Unsupported
from ddp_collectives.sizes import show

_COLUMNS: Final = (
    *(("OPERATION", -14), ("DTYPE", -8), ("SIZE", 9), ("MEDIAN", 9), ("MIN", 9), ("MAX", 9)),
    *(("ALGBW", 11), ("BUSBW", 11), ("RESULT", -6)),
)
"""Header and width; negative for left-aligned text."""
_GAP: Final = "  "


def header(*, compared: bool) -> str:
    """Return the first line of the table."""
    return _line([name for name, _ in _COLUMNS], "  THAN BEFORE" if compared else "")


def row(result: Result, change: Change | None = None) -> str:
    """Return one line of the table."""
    seconds, has_size = result.seconds, result.size_bytes > 0
    return _line(
        [
            result.operation,
            result.dtype or "-",
            show(result.size_bytes) if has_size else "-",
            *map(duration, (seconds.median, seconds.minimum, seconds.maximum)),
            format_bandwidth(result.algorithm_bytes_per_second) if has_size else "-",
            format_bandwidth(result.bus_bytes_per_second) if has_size else "-",
            "WRONG" if result.wrong else "right",
        ],
        "" if change is None else f"  {_change(change)}",
    )


def unsupported_row(missing: Unsupported) -> str:
    """Return the line of an unsupported operation."""
    return _line([missing.operation, missing.dtype or "-"], f"  not supported: {missing.reason}")


def error_messages(result: Result) -> list[str]:
    """Return one sentence per wrong result, with rank and element."""
    return [
        f"{title(result)}: rank {wrong['rank']} got {wrong['got']:g} for "
        f"{wrong['expected']:g} at element {wrong['element']}"
        + (f", {wrong['count']} elements are wrong." if wrong["count"] > 1 else ", the only wrong one.")
        for wrong in result.wrong
    ]


def title(result: Result) -> str:
    """Return the name of a measurement for a sentence."""
    return f"{result.operation} {result.dtype} of {show(result.size_bytes)}" if result.size_bytes else result.operation


def results_to_json(
    about: Mapping[str, Any],
    results: Sequence[tuple[Result, Change | None]],
    unsupported: Sequence[Unsupported],
) -> str:
    """Return the whole run as JSON. ``about`` describes where and how it was measured."""
    rows = [asdict(result) | ({"change": asdict(change)} if change else {}) for result, change in results]
    missing = [asdict(each) for each in unsupported]
    return json.dumps(
        {"apiVersion": API_VERSION, "kind": KIND, **about, "results": rows, "unsupported": missing}, indent=2
    )


def duration(seconds: float) -> str:
    """Return a time with three digits and its unit.

    >>> [duration(each) for each in (0.00001234, 0.0123, 1.5)]
    ['12.3 us', '12.3 ms', '1.5 s']
    """
    for unit, name in ((1e-3, "us"), (1.0, "ms")):
        if seconds < unit:
            return f"{float(f'{seconds / unit * 1000:.3g}'):g} {name}"
    return f"{float(f'{seconds:.3g}'):g} s"


def format_bandwidth(bytes_per_second: float) -> str:
    """Return a bandwidth in decimal units, as nccl-tests and network vendors use.

    >>> [format_bandwidth(each) for each in (1.234e9, 45e6)]
    ['1.23 GB/s', '45 MB/s']
    """
    unit, name = (1e9, "GB/s") if bytes_per_second >= 1e9 else (1e6, "MB/s")
    return f"{float(f'{bytes_per_second / unit:.3g}'):g} {name}"


def _change(change: Change) -> str:
    if change.ratio is None:
        return str(change.verdict)
    return f"{change.verdict} ({change.ratio:.2f}x)"


def _line(cells: Sequence[str], rest: str) -> str:
    padded = [
        f"{cell:<{-width}}" if width < 0 else f"{cell:>{width}}"
        for cell, (_, width) in zip(cells, _COLUMNS, strict=False)
    ]
    return (_GAP.join(padded) + rest).rstrip()
