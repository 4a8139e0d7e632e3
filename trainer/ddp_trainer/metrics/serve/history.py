"""Bounded history of a pod's numbers, kept by the aggregator for clusters without Prometheus.

:meth:`History.look` reads the boards at a regular interval. At :data:`MOST_READINGS` readings, every other one is
dropped and the interval doubles. A history of any length therefore keeps between half of that number and all of it. It
stores counters and not rates, so dropped readings cost resolution only. The training thread takes no part.

Names and labels are those of the exposition, summed where a pod has many series: phases over its ranks, seconds of a
rank over its phases.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.metric_names import Metric, MetricLabel, cell
from ddp_trainer.common.time_classes import Phase
from ddp_trainer.metrics.families.family import Family
from ddp_trainer.metrics.families.registry import FAMILIES
from ddp_trainer.metrics.serve import history_format
from ddp_trainer.metrics.serve.history_format import Key
from ddp_trainer.metrics.storage.mmap_directory import PodSnapshot, Slot, rank_board_path, read_pod_snapshot
from ddp_trainer.metrics.storage.user_values import MOST_NAMES, read_user_values, user_values_path
from ddp_trainer.process.atomic_files import draft_of

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
    """History of one pod's boards."""

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
        """Read the boards if a reading is due."""
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
        told = {key: [*values, current.get(key)] for key, values in self.series.items()}
        told |= {key: [*[None] * len(self.times), value] for key, value in current.items() if key not in told}
        return history_format.history_to_dict(times, told)

    def keep(self) -> None:
        """Write the history beside the boards. If that fails, it ends with this process."""
        self._written = self.clock()
        with suppress(OSError), draft_of(self.directory / FILE) as draft:
            draft.write_text(json.dumps(history_format.history_to_dict(self.times, self.series)), encoding="utf-8")

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
        """Return the recorded series of all boards at one moment."""
        seen = read_pod_snapshot(self.directory)
        return _values(seen) | _user_values(self.directory, seen)

    def _load(self, told: Mapping[str, Any]) -> None:
        times, self.series = history_format.read(told)
        self.times = times
        while len(times) > 1 and (times[-1] - times[0]) / (len(times) - 1) >= 1.5 * self.interval:
            self.interval *= 2


def _user_values(directory: Path, seen: PodSnapshot) -> dict[Key, float]:
    """Return the values that the script names itself, each of the lowest rank that has it, at most 32."""
    found: dict[str, tuple[int, float]] = {}
    for slot in sorted(seen.ranks, key=lambda slot: slot.rank):
        for name, value in read_user_values(user_values_path(rank_board_path(directory, slot.local_rank))).items():
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
    values = slot.board.values
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
    values = slot.board.values
    return {
        (str(series.sample), tuple((str(name), str(value)) for name, value in series.labels.items())): values[
            series.key
        ]
        for family in families
        for series in family.series()
        if series.key in values
    }
