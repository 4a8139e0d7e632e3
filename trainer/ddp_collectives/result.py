"""Result of one measurement, as in the JSON output."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

API_VERSION: Final = "preflight.ddp/v1"
KIND: Final = "Collectives"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """Statistics of the times of all repeats, in seconds. The time of a repeat is that of the slowest rank."""

    median: float
    minimum: float
    maximum: float
    lower_quartile: float
    upper_quartile: float
    count: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Self:
        """Return the statistics of at least three times.

        >>> Seconds.of([3.0, 1.0, 2.0, 5.0, 4.0])  # doctest: +NORMALIZE_WHITESPACE
        Seconds(median=3.0, minimum=1.0, maximum=5.0, lower_quartile=2.0, upper_quartile=4.0, count=5)
        """
        lower, median, upper = statistics.quantiles(times, n=4, method="inclusive")
        return cls(
            median=median,
            minimum=min(times),
            maximum=max(times),
            lower_quartile=lower,
            upper_quartile=upper,
            count=len(times),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of one operation at one size."""

    operation: str
    dtype: str
    size_bytes: int
    """0 for a barrier."""
    seconds: Seconds
    algorithm_bytes_per_second: float
    bus_bytes_per_second: float
    wrong: Sequence[Mapping[str, Any]]
    """Rank, element, expected, got and count of each rank with a wrong result."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return the result in a document. Raises KeyError or TypeError if it is invalid."""
        fields = {name: document[name] for name in cls.__dataclass_fields__ if name != "seconds"}
        return cls(**fields, seconds=Seconds(**document["seconds"]))

    @property
    def identity(self) -> tuple[str, str, int]:
        """Operation, dtype and size, which identify the measurement in another run."""
        return self.operation, self.dtype, self.size_bytes


@dataclass(frozen=True, slots=True)
class Unsupported:
    """Operation that the backend does not support."""

    operation: str
    dtype: str
    reason: str
    """Error message of the backend."""
