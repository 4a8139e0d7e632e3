"""History of a pod's metrics, and the format in which it is served.

::

    {"version": 1, "times": [Unix time, …], "series": [{"name": …, "labels": {…}, "values": […]}, …]}

``null`` is a missing value. A value that is not finite is a string, as in Prometheus' API. The values of a counter are
its increments since the previous time, the first since 0, because these compress well. After a missing value, the next
increment counts from the last present value.

:meth:`History.sample_if_due` reads the metrics files at a regular interval. At :data:`MOST_READINGS` readings, every
other one is dropped and the interval doubles. A history of any length therefore keeps between half of that number and
all of it. It stores counters and not rates, so dropped readings cost resolution only. The training thread takes no
part.

Names and labels are those of the exposition, summed where a pod has many series: phases over its ranks, seconds of a
rank over its phases.
"""

from __future__ import annotations

import base64
import json
import math
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.constants import HISTORY_MARK, HISTORY_VERSION
from ddp_trainer.common.metric_names import Metric, MetricLabel, cell
from ddp_trainer.common.time_classes import Phase
from ddp_trainer.metrics.families.family import Family
from ddp_trainer.metrics.families.pod_families import FAMILIES
from ddp_trainer.metrics.storage.mmap_directory import PodSnapshot, Slot, rank_metrics_path, read_pod_snapshot
from ddp_trainer.metrics.storage.user_values import MOST_NAMES, read_user_values, user_values_path
from ddp_trainer.process.atomic_files import draft_of

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


def read(document: Mapping[str, Any]) -> tuple[list[float], dict[Key, list[float | None]]]:
    """Return times and series of a document; the inverse of :func:`history_to_dict`.

    Raises:
        ValueError: The document has another version or a damaged series.
        KeyError: A field is missing.
        TypeError: A field has the wrong type.
        AttributeError: A field has the wrong type.
    """
    if document["version"] != HISTORY_VERSION:
        raise ValueError(f"A history of version {document['version']!r} is none of version {HISTORY_VERSION}.")
    times = [float(moment) for moment in document["times"]]
    return times, {_key(entry): _read(entry, len(times)) for entry in document["series"]}


def downsample(document: Mapping[str, Any], most: int = LEFT_READINGS) -> dict[str, Any]:
    """Return the document with at most ``most`` readings, among them the first and the last."""
    times, series = read(document)
    if len(times) <= most:
        return dict(document)
    chosen = sorted({round(index * (len(times) - 1) / (most - 1)) for index in range(most)})
    selected = {key: [values[index] for index in chosen] for key, values in series.items()}
    return history_to_dict([times[index] for index in chosen], selected)


def lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a document as lines of a log. Each line has its number and the number of lines."""
    text = json.dumps(document, separators=(",", ":"))
    packed = base64.b64encode(zlib.compress(text.encode(), 9)).decode()
    parts = [packed[start : start + LINE_CHARACTERS] for start in range(0, len(packed), LINE_CHARACTERS)]
    for number, part in enumerate(parts, start=1):
        yield f"{HISTORY_MARK}{number}/{len(parts)} {part}"


def _written(name: str, values: Sequence[float | None]) -> list[float | str | None]:
    if not _is_counter(name):
        return [_plain(value) for value in values]
    written: list[float | str | None] = []
    before = 0.0
    for value in values:
        if value is None or not math.isfinite(value):
            written.append(None)
            continue
        now = round(value, 3)
        written.append(_plain(now - before))
        before = now
    return written


def _plain(value: float | None) -> float | str | None:
    if value is None:
        return None
    if not math.isfinite(value):
        return str(value)
    short = float(f"{value:.6g}") if abs(value) < 1e6 else round(value, 3)
    return int(short) if short == int(short) else short


def _read(series: Mapping[str, Any], count: int) -> list[float | None]:
    """Return the original values; the inverse of :func:`_written`. Raises ValueError unless there are ``count``."""
    stored = [None if value is None else float(value) for value in series["values"]]
    if len(stored) != count:
        raise ValueError(f"A history of {count} readings has a series of {len(stored)}.")
    if not _is_counter(series["name"]):
        return stored
    total, values = 0.0, list[float | None]()
    for grown in stored:
        total += grown or 0.0
        values.append(None if grown is None else total)
    return values


def _is_counter(name: str) -> bool:
    return name.endswith("_total")


def _key(series: Mapping[str, Any]) -> Key:
    return str(series["name"]), tuple((str(name), str(value)) for name, value in series["labels"].items())


MOST_READINGS: Final = 240
FIRST_SECONDS: Final = 0.5
"""Initial interval between two readings, in seconds."""
KEPT_SECONDS: Final = 5.0
"""Seconds between writes of the history's file, from which a restarted aggregator in the same pod continues."""

FILE: Final = "history.json"

_OF_JOB: Final = frozenset({Metric.LOSS, Metric.LEARNING_RATE, "ddp_eval_loss", Metric.JOB_TIME, Metric.LOST_PROGRESS})
_OF_AGENT: Final = frozenset(
    {
        *(Metric.WORLD_SIZE, Metric.NODES, Metric.RENDEZVOUS_ROUND, Metric.RESTARTS, Metric.FAILURES),
        *(Metric.LAST_FAILURE, Metric.LAST_FAILED_RANK),
    }
)
_JOB_FAMILIES: Final = tuple(family for family in FAMILIES if family.name in _OF_JOB)
_AGENT_FAMILIES: Final = tuple(family for family in FAMILIES if family.name in _OF_AGENT)


@dataclass(slots=True)
class History:
    """History of one pod's metrics files."""

    directory: Path
    clock: Callable[[], float] = time.time
    """Returns Unix time."""
    interval: float = FIRST_SECONDS
    times: list[float] = field(default_factory=list)
    series: dict[Key, list[float | None]] = field(default_factory=dict)
    _written: float = 0.0

    @classmethod
    def load(cls, directory: Path, clock: Callable[[], float] = time.time) -> History:
        """Return the history that a previous aggregator saved in the directory; an empty one if there is none."""
        history = cls(directory, clock)
        with suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            history._load(json.loads((directory / FILE).read_text(encoding="utf-8")))
        return history

    def sample_if_due(self) -> None:
        """Read the metrics files if a reading is due."""
        now = self.clock()
        if self.times and 0 <= now - self.times[-1] < self.interval:
            return
        self._add(now, self._values())
        if not 0 <= now - self._written < KEPT_SECONDS:
            self.keep()

    def to_dict(self) -> dict[str, Any]:
        """Return the whole history, with a reading of this moment."""
        now = self.clock()
        times = [*self.times, now]
        current = self._values()
        readings = {key: [*values, current.get(key)] for key, values in self.series.items()}
        readings |= {key: [*[None] * len(self.times), value] for key, value in current.items() if key not in readings}
        return history_to_dict(times, readings)

    def keep(self) -> None:
        """Write the history beside the metrics files. If that fails, it ends with this process."""
        self._written = self.clock()
        with suppress(OSError), draft_of(self.directory / FILE) as draft:
            draft.write_text(json.dumps(history_to_dict(self.times, self.series)), encoding="utf-8")

    def _add(self, now: float, values: Mapping[Key, float]) -> None:
        for key in values:
            self.series.setdefault(key, [None] * len(self.times))
        self.times.append(now)
        for key, known in self.series.items():
            known.append(values.get(key))
        if len(self.times) >= MOST_READINGS:
            self.interval *= 2
            self.times = self.times[1::2]  # the last one stays
            self.series = {key: known[1::2] for key, known in self.series.items()}

    def _values(self) -> dict[Key, float]:
        """Return the recorded series of all metrics files at one moment."""
        seen = read_pod_snapshot(self.directory)
        return _values(seen) | _user_values(self.directory, seen)

    def _load(self, document: Mapping[str, Any]) -> None:
        times, self.series = read(document)
        self.times = times
        while len(times) > 1 and (times[-1] - times[0]) / (len(times) - 1) >= 1.5 * self.interval:
            self.interval *= 2


def _user_values(directory: Path, seen: PodSnapshot) -> dict[Key, float]:
    """Return the values that the script names itself, each of the lowest rank that has it, at most 32."""
    found: dict[str, tuple[int, float]] = {}
    for slot in sorted(seen.ranks, key=lambda slot: slot.rank):
        for name, value in read_user_values(user_values_path(rank_metrics_path(directory, slot.local_rank))).items():
            found.setdefault(name, (slot.rank, value))
    return {
        (Metric.USER_VALUE.value, ((MetricLabel.NAME.value, name), (MetricLabel.RANK.value, str(rank)))): value
        for name, (rank, value) in [*found.items()][:MOST_NAMES]
    }


def _values(seen: PodSnapshot) -> dict[Key, float]:
    found: dict[Key, float] = {}
    for slot in seen.ranks:
        for key, value in _of_rank(slot):
            found[key] = found.get(key, 0.0) + value
        if slot.rank == 0:
            found |= _of_families(_JOB_FAMILIES, slot)
    if seen.agent is not None:
        found |= _of_families(_AGENT_FAMILIES, seen.agent)
    return found


def _of_rank(slot: Slot) -> Iterator[tuple[Key, float]]:
    values = slot.file.values
    whose = ((MetricLabel.RANK.value, str(slot.rank)), (MetricLabel.LOCAL_RANK.value, str(slot.local_rank)))
    phases = {phase: values.get(cell(Metric.PHASE_SECONDS, phase), 0.0) for phase in Phase}
    waited = (MetricLabel.PHASE.value, Phase.COMM_EXPOSED.value)
    yield (Metric.STEPS.value, whose), values.get(Metric.STEPS, 0.0)
    yield (Metric.PHASE_SECONDS.value, whose), sum(phases.values())
    yield (Metric.PHASE_SECONDS.value, (*whose, waited)), phases[Phase.COMM_EXPOSED]
    yield (Metric.SAMPLES.value, ()), values.get(Metric.SAMPLES, 0.0)
    for phase, seconds in phases.items():
        yield (Metric.PHASE_SECONDS.value, ((MetricLabel.PHASE.value, phase.value),)), seconds


def _of_families(families: Iterable[Family], slot: Slot) -> dict[Key, float]:
    values = slot.file.values
    return {
        (str(series.sample), tuple((str(name), str(value)) for name, value in series.labels.items())): values[
            series.key
        ]
        for family in families
        for series in family.series()
        if series.key in values
    }
