"""Results of measurements of collectives, as a run would have them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ddp_collectives.result import Result, Seconds


def a_result(
    operation: str,
    size_bytes: int,
    times: Sequence[float],
    bus_factor: float = 1.0,
    wrong: Sequence[Mapping[str, Any]] = (),
) -> Result:
    seconds = Seconds.of(times)
    speed = size_bytes / seconds.median
    return Result(
        operation=operation,
        dtype="float32",
        size_bytes=size_bytes,
        seconds=seconds,
        algorithm_bytes_per_second=speed,
        bus_bytes_per_second=speed * bus_factor,
        wrong=wrong,
    )
