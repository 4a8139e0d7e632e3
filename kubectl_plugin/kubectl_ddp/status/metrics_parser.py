"""Parser for a pod's ``/metrics``, limited to the families that the plugin uses, and for its metrics history.

Importing ``prometheus_client`` takes 80 ms.

The aggregator of a pod writes the history in packed form to the end of the pod's log. Any program can write to the log,
so the input is not trusted. Malformed histories are ignored, and unpacking stops at :data:`MOST_BYTES`.
"""

from __future__ import annotations

import base64
import binascii
import re
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final
from urllib.parse import urlencode

from ddp_trainer.common.constants import FAMILY_QUERY, HISTORY_MARK
from ddp_trainer.common.metric_names import Metric

MOST_BYTES: Final = 8 << 20
LAST_LINES: Final = 64
"""Number of last log lines that contain the history. The launcher writes a few lines after it."""

_LINE: Final = re.compile(rf"^{re.escape(HISTORY_MARK)}(\d{{1,4}})/(\d{{1,4}}) ([A-Za-z0-9+/=]+)$")


def without(lines: Iterable[str]) -> Iterator[str]:
    """Filter the parts of a history from timestamped log lines."""
    return (line for line in lines if not is_part(line.partition(" ")[2]))


def is_part(text: str) -> bool:
    """Return whether a line is a part of a packed history."""
    return text.startswith(HISTORY_MARK) and _LINE.match(text) is not None


def unpacked(lines: Iterable[str]) -> str | None:
    """Return the last complete history in the lines of a log, as JSON; None if there is none."""
    packed: str | None = None
    parts: list[str] = []
    for line in lines:
        if (found := _LINE.match(line)) is None:
            continue
        number, count = int(found[1]), int(found[2])
        parts = parts if number == len(parts) + 1 else []
        if number == len(parts) + 1:
            parts.append(found[3])
        if number == count == len(parts):
            packed, parts = "".join(parts), []
    return _decompress(packed) if packed is not None else None


def _decompress(packed: str) -> str | None:
    try:
        inflating = zlib.decompressobj()
        text = inflating.decompress(base64.b64decode(packed, validate=True), MOST_BYTES)
        return text.decode() if inflating.eof else None
    except (binascii.Error, zlib.error, UnicodeDecodeError):
        return None


Labels = Mapping[str, str]

RANK_STOPPED: Final = "ddp_rank_stopped"
GROUPS_JOINED: Final = "ddp_rendezvous_duration_seconds_count"
"""Number of worker groups that a pod has been in."""

TABLE: Final = (
    *(Metric.RANK_UP, Metric.STEP, Metric.STEPS, Metric.SAMPLES, Metric.PHASE_SECONDS, Metric.LAST_STEP_TIMESTAMP),
    *(Metric.STEPS_PLANNED, Metric.LOSS, Metric.JOB_TIME, Metric.LOST_PROGRESS),
    *(Metric.GROUP_STATE, Metric.RESTARTS, Metric.RENDEZVOUS_ROUND, Metric.WORLD_SIZE, Metric.LAST_FAILURE),
    *(Metric.NODES, Metric.OUTSIDE_SINCE),
)
"""Metric families that a table of jobs shows."""

LIVE: Final = (
    *TABLE,
    *(Metric.RANK_INFO, Metric.RANK_PID, RANK_STOPPED, Metric.SAMPLED_STEPS, Metric.SAMPLED_BUSY),
    *(Metric.EPOCH, Metric.USER_VALUE, Metric.LEARNING_RATE, Metric.FIRST_RANK, Metric.STALLED, Metric.STALLED_BY),
    *(Metric.STARTUP, Metric.AGENT_START, Metric.JOB_START, Metric.FAILURES, Metric.LAST_FAILED_RANK),
    GROUPS_JOINED,
)
"""Metric families that describe the state of a job and its ranks: half of those that a pod serves."""

_WANTED: Final = frozenset([*(str(metric) for metric in Metric), RANK_STOPPED, GROUPS_JOINED])
_SAMPLE: Final = re.compile(r"^(ddp_\w+)(?:\{(.*)\})?[ \t]+(\S+)", re.MULTILINE)
"""Pattern of one sample. The labels end at the last brace, because their values may contain braces."""
_LABEL: Final = re.compile(r'(?:^|,)[ \t]*([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
"""Pattern of one label. It begins at a comma, so that text without one is read once, whatever a pod serves."""
MOST_LABEL_CHARACTERS: Final = 4096
"""Longest labels of a sample. Samples with longer labels are not ours, and are skipped."""
_ESCAPED: Final = re.compile(r"\\(.)")


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples of one pod's metrics."""

    families: dict[str, list[tuple[Labels, float]]] = field(default_factory=dict)

    def all(self, name: str) -> Iterable[tuple[Labels, float]]:
        """Return all samples of a family."""
        return self.families.get(name, ())

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the first sample of a family with these labels."""
        for found, number in self.all(name):
            if not labels or all(found.get(label) == text for label, text in labels.items()):
                return number
        return None

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over the samples of a family with these labels."""
        return sum(
            number
            for found, number in self.all(name)
            if all(found.get(label) == text for label, text in labels.items())
        )

    def by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        """Return the values of a family by the value of one label."""
        return {
            found[label]: number
            for found, number in self.all(name)
            if label in found and all(found.get(key) == text for key, text in labels.items())
        }

    def split(self, label: str) -> dict[str, Samples]:
        """Return the samples for each value of a label, in one pass."""
        found: dict[str, dict[str, list[tuple[Labels, float]]]] = {}
        for name, samples in self.families.items():
            for sample in samples:
                if (value := sample[0].get(label)) is None:
                    continue
                if (part := found.get(value)) is None:
                    part = found[value] = {}
                part.setdefault(name, []).append(sample)
        return {value: Samples(families) for value, families in found.items()}


def parse(text: str) -> Samples:
    r"""Parse the known families of an exposition in Prometheus' text format. Other lines are skipped.

    >>> parse('ddp_step{rank="0"} 7\nprocess_open_fds 3').value("ddp_step", rank="0")
    7.0
    """
    families: dict[str, list[tuple[Labels, float]]] = {}
    known: dict[str, Labels] = {}  # labels of a rank repeat in every family
    for name, labels, value in _SAMPLE.findall(text):
        if name not in _WANTED or len(labels) > MOST_LABEL_CHARACTERS:
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        if (read := known.get(labels)) is None:
            read = known[labels] = _labels(labels)
        families.setdefault(name, []).append((read, number))
    return Samples(families)


def iter_samples(text: str) -> Iterator[tuple[str, Labels, float]]:
    r"""Yield name, labels and value of each ``ddp_`` sample of an exposition in Prometheus' text format.

    >>> list(iter_samples('ddp_step{rank="0"} 7\nprocess_open_fds 3'))
    [('ddp_step', {'rank': '0'}, 7.0)]
    """
    for name, labels, value in _SAMPLE.findall(text):
        if len(labels) > MOST_LABEL_CHARACTERS:
            continue
        try:
            number = float(value)
        except ValueError:
            continue
        yield name, _labels(labels) if labels else {}, number


def metrics_path(families: Collection[str] = ()) -> str:
    """Return the path at which a pod serves these families; without families, the path for all of them.

    >>> metrics_path(["ddp_step", "ddp_loss"])
    '/metrics?name%5B%5D=ddp_step&name%5B%5D=ddp_loss'
    """
    return _path_of(tuple(families)) if families else "/metrics"


@cache
def _path_of(families: tuple[str, ...]) -> str:
    return "/metrics?" + urlencode([(FAMILY_QUERY, str(name)) for name in families])


def _labels(text: str) -> dict[str, str]:
    found = dict(_LABEL.findall(text))
    return {name: _unescape(value) for name, value in found.items()} if "\\" in text else found


def _unescape(value: str) -> str:
    return _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)
