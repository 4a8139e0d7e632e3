"""Time series of a job's pods and of any other source: name, labels, and one optional value per time."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ddp_trainer.common.constants import HISTORY_VERSION
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.status.termination_message import workers
from kubectl_ddp.util.concurrency import map_concurrently

POD: Final = "pod"
"""Label with the pod that reported a series."""

MOST_SERIES: Final = 5_000
MOST_READINGS: Final = 1_000
"""Limits per pod, since a pod may report anything."""


@dataclass(frozen=True, slots=True)
class Series:
    """One time series."""

    name: str
    times: Sequence[float]
    """Ascending Unix times."""
    values: Sequence[float | None]
    """One value per time; None if missing."""
    labels: Mapping[str, str] = field(default_factory=dict)
    is_whole: bool = True
    """True if the series is complete: a counter that appears later than the first time started there at 0."""

    def known(self) -> Iterator[tuple[float, float]]:
        """Yield the times and values that are not missing."""
        return ((moment, value) for moment, value in zip(self.times, self.values, strict=True) if value is not None)

    @property
    def last(self) -> float | None:
        """Latest finite value."""
        return next((value for value in reversed(self.values) if value is not None and math.isfinite(value)), None)


def chosen(series: Iterable[Series], name: str, *labels: str) -> list[Series]:
    """Return the series with this name and exactly these labels in addition to the pod's."""
    wanted = {*labels}
    return [each for each in series if each.name == name and each.labels.keys() - {POD} == wanted]


def read(text: str, pod: str) -> list[Series]:
    """Parse the history of a pod's aggregator; return no series if it is invalid.

    The format is defined in ``ddp_trainer.metrics.serve.history``.
    """
    try:
        document = json.loads(text)
        if document["version"] != HISTORY_VERSION:
            return []
        times = [float(moment) for moment in document["times"]]
        if len(times) > MOST_READINGS:
            return []
        rising = [index for index, moment in enumerate(times) if index == 0 or moment > max(times[:index])]
        found = [_series(each, times, pod) for each in document["series"][:MOST_SERIES]]
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
        return []
    return [
        Series(each.name, [times[index] for index in rising], [each.values[index] for index in rising], each.labels)
        for each in found
    ]


def _series(told: Mapping[str, Any], times: Sequence[float], pod: str) -> Series:
    name = str(told["name"])
    values = [None if value is None else float(value) for value in told["values"]]
    if len(values) != len(times):
        raise ValueError(name)
    labels = {str(label): str(value) for label, value in told["labels"].items()} | {POD: pod}
    return Series(name, times, list(_cumulative_sum(values)) if name.endswith("_total") else values, labels)


def _cumulative_sum(increases: Iterable[float | None]) -> Iterator[float | None]:
    total = 0.0
    for grown in increases:
        total += grown or 0.0
        yield None if grown is None else total


def load_series(backend: Backend, snapshot: Snapshot) -> list[Series]:
    """Return the series of all worker pods, queried in parallel; pods without history are left out."""
    told = map_concurrently(partial(_of_pod, backend), workers(snapshot.pods))
    return [series for of_pod in told for series in of_pod]


def _of_pod(backend: Backend, pod: Object) -> list[Series]:
    try:
        text = backend.metrics_history(pod)
    except DdpError:  # access denied, or the pod has gone: continue without it
        return []
    return read(text, str(pod["metadata"]["name"])) if text is not None else []
