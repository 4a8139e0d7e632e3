"""Format of a pod's history, as served over HTTP, saved in a file and written to the log.

::

    {"version": 1, "times": [Unix time, …], "series": [{"name": …, "labels": {…}, "values": […]}, …]}

``null`` is a missing value. A value that is not finite is a string, as in Prometheus' API. The values of a counter are
its increments since the previous time, the first since 0, because these compress well. After a missing value, the next
increment counts from the last present value.
"""

from __future__ import annotations

import base64
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ddp_trainer.common.constants import HISTORY_MARK, HISTORY_VERSION
from ddp_trainer.common.metric_names import Metric

LEFT_READINGS: Final = 100
"""Most readings written to the pod's log."""
LINE_CHARACTERS: Final = 3_500
"""Characters of one log line. Writes to a pipe of up to 4 KiB are not mixed with the output of other processes."""

Labels = tuple[tuple[str, str], ...]
Key = tuple[str, Labels]
"""Name and labels of a series."""


def history_to_dict(times: Sequence[float], series: Mapping[Key, Sequence[float | None]]) -> dict[str, Any]:
    """Build a document from times and series.

    Args:
        times: Unix times of the readings, in seconds.
        series: Values of each series at these times, None if missing. A series of zeros is left out,
            except for a value of the script.
    """
    return {
        "version": HISTORY_VERSION,
        "times": [round(moment, 2) for moment in times],
        "series": [
            {"name": name, "labels": dict(labels), "values": _written(name, values)}
            for (name, labels), values in series.items()
            if any(values) or name == Metric.USER_VALUE
        ],
    }


def read(told: Mapping[str, Any]) -> tuple[list[float], dict[Key, list[float | None]]]:
    """Return times and series of a document; the inverse of :func:`history_to_dict`.

    Raises:
        ValueError: The document has another version or a damaged series.
        KeyError: A field is missing.
        TypeError: A field has the wrong type.
        AttributeError: A field has the wrong type.
    """
    if told["version"] != HISTORY_VERSION:
        raise ValueError(f"A history of version {told['version']!r} is none of version {HISTORY_VERSION}.")
    times = [float(moment) for moment in told["times"]]
    return times, {_key(each): _read(each, len(times)) for each in told["series"]}


def downsample(told: Mapping[str, Any], most: int = LEFT_READINGS) -> dict[str, Any]:
    """Return the document with at most ``most`` readings, among them the first and the last."""
    times, series = read(told)
    if len(times) <= most:
        return dict(told)
    chosen = sorted({round(index * (len(times) - 1) / (most - 1)) for index in range(most)})
    kept = {key: [values[index] for index in chosen] for key, values in series.items()}
    return history_to_dict([times[index] for index in chosen], kept)


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """Yield a document as lines of a log. Each line has its number and the number of lines."""
    text = json.dumps(told, separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    parts = [packed[start : start + LINE_CHARACTERS] for start in range(0, len(packed), LINE_CHARACTERS)]
    for number, part in enumerate(parts, start=1):
        yield f"{HISTORY_MARK}{number}/{len(parts)} {part}"


def _written(name: str, values: Sequence[float | None]) -> list[float | str | None]:
    if not _is_counter(name):
        return [_plain(value) for value in values]
    told: list[float | str | None] = []
    before = 0.0
    for value in values:
        if value is None or not math.isfinite(value):
            told.append(None)
            continue
        now = round(value, 3)
        told.append(_plain(now - before))
        before = now
    return told


def _plain(value: float | None) -> float | str | None:
    if value is None:
        return None
    if not math.isfinite(value):
        return str(value)
    short = float(f"{value:.6g}") if abs(value) < 1e6 else round(value, 3)
    return int(short) if short == int(short) else short


def _read(series: Mapping[str, Any], count: int) -> list[float | None]:
    """Return the original values; the inverse of :func:`_written`. Raises ValueError unless there are ``count``."""
    told = [None if value is None else float(value) for value in series["values"]]
    if len(told) != count:
        raise ValueError(f"A history of {count} readings has a series of {len(told)}.")
    if not _is_counter(series["name"]):
        return told
    total, values = 0.0, list[float | None]()
    for grown in told:
        total += grown or 0.0
        values.append(None if grown is None else total)
    return values


def _is_counter(name: str) -> bool:
    return name.endswith("_total")


def _key(series: Mapping[str, Any]) -> Key:
    return str(series["name"]), tuple((str(name), str(value)) for name, value in series["labels"].items())
