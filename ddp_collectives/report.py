"""Results of a run: rows of a table, sentences, and versioned JSON."""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from ddp_collectives.flags import format_size

_COLUMNS: Final = "{:<14}  {:>9}  {:>9}  {:>9}  {:>9}  {:>11}  {:>11}  {}"
_HEADERS: Final = ("OPERATION", "SIZE", "MEDIAN", "MIN", "MAX", "ALGBW", "BUSBW", "RESULT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Statistics of the times of all repeats, in seconds. The time of a repeat is that of the slowest rank."""

    median: float
    minimum: float
    maximum: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one operation at one size, as in the JSON output."""

    operation: str
    size_bytes: int
    seconds: Seconds
    algorithm_bytes_per_second: float
    bus_bytes_per_second: float
    wrong: Sequence[str]
    """Sentence for each rank with a wrong result."""

    @classmethod
    def create(cls, operation: str, size_bytes: int, bus_factor: float, ranks: Sequence[Mapping[str, Any]]) -> Self:
        """Return the result from what each rank reported: ``rank``, ``times`` and ``wrong``, a text."""
        times = max_rank_times([rank["times"] for rank in ranks])
        name = f"{operation} of {format_size(size_bytes)}"
        bytes_per_second = size_bytes / statistics.median(times)
        return cls(
            operation=operation,
            size_bytes=size_bytes,
            seconds=Seconds(median=statistics.median(times), minimum=min(times), maximum=max(times)),
            algorithm_bytes_per_second=bytes_per_second,
            bus_bytes_per_second=bytes_per_second * bus_factor,
            wrong=[f"{name}: rank {rank['rank']} {rank['wrong']}." for rank in ranks if rank["wrong"]],
        )

    def row(self) -> str:
        """Return the line of the table."""
        seconds = self.seconds
        return _COLUMNS.format(
            self.operation,
            format_size(self.size_bytes),
            *map(format_duration, (seconds.median, seconds.minimum, seconds.maximum)),
            *map(format_bandwidth, (self.algorithm_bytes_per_second, self.bus_bytes_per_second)),
            "WRONG" if self.wrong else "right",
        )


def max_rank_times(times: Sequence[Sequence[float]]) -> list[float]:
    """Return the time of the slowest rank for each repeat, when the collective was complete on all ranks.

    >>> max_rank_times([[1.0, 5.0], [2.0, 4.0]])
    [2.0, 5.0]
    """
    return [max(repeat) for repeat in zip(*times, strict=True)]


def header(metadata: Mapping[str, Any]) -> str:
    """Return the first lines of the table."""
    hosts = len({rank["host"] for rank in metadata["ranks"]})
    return (
        f"Ranks: {metadata['world_size']}, hosts: {hosts}, {metadata['backend']}, torch {metadata['torch']}; times are "
        f"of the slowest rank, {metadata['repeats']} repeats\n{_COLUMNS.format(*_HEADERS)}"
    )


def to_json(kind: str, metadata: Mapping[str, Any], **results: Any) -> str:
    """Return the whole run as JSON. ``metadata`` describes where and how it was measured."""
    return json.dumps({"apiVersion": "preflight.ddp/v1", "kind": kind, **metadata, **results}, indent=2)


def format_duration(seconds: float) -> str:
    """Return a time with three digits and its unit.

    >>> [format_duration(each) for each in (0.00001234, 0.0123, 1.5)]
    ['12.3 us', '12.3 ms', '1.5 s']
    """
    for unit, name in ((1e-3, "us"), (1.0, "ms")):
        if seconds < unit:
            return f"{float(f'{seconds / unit * 1000:.3g}'):g} {name}"
    return f"{seconds:.3g} s"


def format_bandwidth(bytes_per_second: float) -> str:
    """Return a bandwidth in decimal units, as nccl-tests and network vendors use.

    >>> [format_bandwidth(each) for each in (1.234e9, 45e6)]
    ['1.23 GB/s', '45 MB/s']
    """
    unit, name = (1e9, "GB/s") if bytes_per_second >= 1e9 else (1e6, "MB/s")
    return f"{float(f'{bytes_per_second / unit:.3g}'):g} {name}"
