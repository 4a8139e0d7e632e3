"""What one measurement came to, as it stands in the JSON."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, Self

from ddp_trainer.preflight.collectives import bandwidth

API_VERSION: Final = "preflight.ddp/v1"
KIND: Final = "Collectives"


@dataclass(frozen=True, slots=True, kw_only=True)
class Seconds:
    """The times of all repeats; each is that of the slowest rank."""

    median: float
    minimum: float
    maximum: float
    lower_quartile: float
    upper_quartile: float
    count: int

    @classmethod
    def of(cls, times: Sequence[float]) -> Self:
        """At least three times.

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
    """One operation at one size."""

    operation: str
    dtype: str
    size_bytes: int
    """0 for a barrier."""
    seconds: Seconds
    algorithm_bytes_per_second: float
    bus_bytes_per_second: float
    wrong: Sequence[Mapping[str, Any]]
    """Of each rank whose result differs: rank, element, expected, got, count."""

    @classmethod
    def of(
        cls,
        identity: tuple[str, str, int],
        times: Sequence[float],
        factor: float,
        wrong: Sequence[Mapping[str, Any]],
    ) -> Self:
        """``identity`` is operation, dtype and bytes; ``factor`` that of the bus bandwidth."""
        operation, dtype, size_bytes = identity
        seconds = Seconds.of(times)
        algorithm = bandwidth.algorithm(size_bytes, seconds.median)
        return cls(
            operation=operation,
            dtype=dtype,
            size_bytes=size_bytes,
            seconds=seconds,
            algorithm_bytes_per_second=algorithm,
            bus_bytes_per_second=algorithm * factor,
            wrong=wrong,
        )

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Raises KeyError or TypeError where it is none."""
        fields = {name: document[name] for name in cls.__dataclass_fields__ if name != "seconds"}
        return cls(**fields, seconds=Seconds(**document["seconds"]))

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)

    @property
    def identity(self) -> tuple[str, str, int]:
        """What makes it the same measurement in another run."""
        return self.operation, self.dtype, self.size_bytes


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An operation that the backend does not have."""

    operation: str
    dtype: str
    reason: str
    """In the backend's own words."""
