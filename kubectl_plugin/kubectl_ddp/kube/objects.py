"""Kubernetes objects as JSON: conditions, containers, label selectors, all objects of one job, and those around it."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from ddp_trainer.common.constants import Role
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import UsageError

_RFC3339: Final = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?(Z|[+-]\d\d:\d\d)", re.ASCII)
_DIGITS: Final = 9


def nanoseconds(moment: str | None) -> int | None:
    """Return an RFC 3339 time as nanoseconds of Unix time; None if it is missing or malformed.

    >>> nanoseconds("1969-12-31T19:01:00.000000001-05:00")
    60000000001
    """
    found = _RFC3339.fullmatch(moment or "")
    if found is None:
        return None
    second, fraction, zone = found.groups(default="")
    try:
        return int(datetime.fromisoformat(f"{second}{zone}").timestamp()) * 10**9 + int(f"{fraction:0<9}"[:9])
    except ValueError:
        return None


def epoch(moment: str | None) -> float | None:
    """Return an RFC 3339 time as Unix time in seconds; None if it is missing or malformed.

    >>> epoch("1970-01-01T01:01:00.25+01:00")
    60.25
    """
    found = nanoseconds(moment)
    return None if found is None else found / 1e9


def timestamp(moment: float | None) -> str | None:
    """Return a Unix time as a Kubernetes timestamp; None if it is unknown.

    >>> timestamp(60.0)
    '1970-01-01T00:01:00Z'
    """
    return None if moment is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


def log_timestamp(moment: int) -> str:
    """Return nanoseconds of Unix time as RFC 3339 in UTC, with nine digits, so that texts sort by time.

    >>> log_timestamp(1_700_000_000_000_000_001)
    '2023-11-14T22:13:20.000000001Z'
    """
    seconds, rest = divmod(moment, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09d}Z"


def as_log_timestamp(moment: str) -> str | None:
    """Return an RFC 3339 time of any zone in the form of :func:`log_timestamp`; None if it is malformed.

    >>> as_log_timestamp("2026-01-02T03:04:05.1-05:00")
    '2026-01-02T08:04:05.100000000Z'
    """
    found = _RFC3339.fullmatch(moment)
    if found is not None and found[3] == "Z" and len(found[2] or "") == _DIGITS:  # as almost all are
        return moment
    time_ns = nanoseconds(moment)
    return None if time_ns is None else log_timestamp(time_ns)


Object = dict[str, Any]
"""A Kubernetes object as JSON: apiVersion, kind, metadata, spec, status."""


@dataclass(frozen=True, slots=True)
class Queued:
    """Position of a job in a queue of Kueue."""

    name: str
    """Name of the LocalQueue."""
    is_admitted: bool
    """True if Kueue has admitted the job. Kueue may evict it later."""
    position: int | None = None
    """Position among the jobs that wait for the same quota, from 1. ``None`` if it does not wait or the position is
    unknown.
    """
    is_held: bool = False
    """True if the job is suspended through Kueue (``active: false``) and waits only to be resumed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects of one job at one moment."""

    job: Object
    """Root object (for example a PyTorchJob), with its status."""
    pods: tuple[Object, ...]
    """Worker and store pods, with their status. The label ``contract.Label.ROLE`` distinguishes them."""
    events: tuple[Object, ...] = ()
    """Events about the job and its pods, oldest first."""
    queued: Queued | None = None
    """Position in a queue; ``None`` if the job is in no queue."""


def condition_of(item: Object, kind: str) -> Mapping[str, Any]:
    """Return the condition of a type, whatever its status; empty if the object has none.

    >>> condition_of({"status": {"conditions": [{"type": "Ready", "status": "False"}]}}, "Ready")
    {'type': 'Ready', 'status': 'False'}
    """
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((condition for condition in conditions if condition.get("type") == kind), {})


def holds(item: Object, kind: str) -> bool:
    """Return whether an object has a condition with status True.

    >>> holds({}, "Ready"), holds({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, "Ready")
    (False, True)
    """
    return bool(condition_of(item, kind).get("status") == "True")


NAMES: Final = frozenset({*(engine.container for engine in ENGINES.values()), str(Role.STORE)})
"""Names of the job's containers: of a worker on each engine, and of the store."""


def main_container(pod: Object) -> str:
    """Return the name of the job's container; that of the first one in a pod of another component."""
    names = [str(container["name"]) for container in pod["spec"]["containers"]]
    return next((name for name in names if name in NAMES), names[0])


def main_status(pod: Object) -> Mapping[str, Any]:
    """Return the status of the job's container; empty before the pod has one. The kubelet sorts them by name."""
    statuses = (pod.get("status") or {}).get("containerStatuses") or [{}]
    status: Mapping[str, Any] = next(
        (container for container in statuses if container.get("name") in NAMES), statuses[0]
    )
    return status


class RelatedKind(StrEnum):
    """Kinds of objects that a job depends on."""

    EVENTS = "events"
    """All events of the job's namespace, including those of deleted pods and of objects that an operator created."""
    NODES = "nodes"
    BOUND = "pods of all namespaces"
    """Pods of any owner that hold resources of a node."""
    CLAIMS = "persistentvolumeclaims"
    WORKLOADS = "workloads"
    """Kueue's Workloads of all namespaces, for the jobs that hold quota."""
    LOCAL_QUEUES = "localqueues"
    CLUSTER_QUEUES = "clusterqueues"
    OPERATOR = "pods of the operator"
    """Pods of the operator of the job's engine."""
    QUEUE_CONTROLLER = "pods of Kueue"
    QUOTAS = "resourcequotas"
    POLICIES = "networkpolicies"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelatedObjects:
    """Objects that were read."""

    found: Mapping[RelatedKind, tuple[Object, ...]] = field(default_factory=dict)
    """Kind → objects. Empty if none exist, or if the place does not have the kind."""
    unseen: tuple[str, ...] = ()
    """One sentence for each kind that could not be read."""

    def of(self, kind: RelatedKind) -> tuple[Object, ...]:
        """Return the objects of a kind; empty if the kind was not read."""
        return self.found.get(kind, ())

    def was_read(self, kind: RelatedKind) -> bool:
        """Return whether the kind was read, so that an empty result means that no such object exists."""
        return kind in self.found


_SET: Final = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")
_EQUALITY: Final = re.compile(r"([^\s=!]+)\s*(==|=|!=)\s*([^\s=!]*)")
_EXISTENCE: Final = re.compile(r"(!?)\s*([^\s=!()]+)")
_OPERATORS: Final[Mapping[str, str]] = {"in": "In", "notin": "NotIn", "=": "In", "==": "In", "!=": "NotIn"}


def parse_label_selector(text: str) -> dict[str, Any]:
    """Return a LabelSelector for the text of one. Raises UsageError.

    >>> parse_label_selector("a=b,c notin (d, e),!f")["matchExpressions"][1:]
    [{'key': 'c', 'operator': 'NotIn', 'values': ['d', 'e']}, {'key': 'f', 'operator': 'DoesNotExist'}]
    """
    return {"matchExpressions": [*_expressions(text)]}


def _expressions(text: str) -> Iterator[dict[str, Any]]:
    for part in re.split(r",(?![^()]*\))", text):
        term = part.strip()
        if match := _SET.fullmatch(term):
            values = [value.strip() for value in match[3].split(",")]
            yield {"key": match[1], "operator": _OPERATORS[match[2]], "values": values}
        elif match := _EQUALITY.fullmatch(term):
            yield {"key": match[1], "operator": _OPERATORS[match[2]], "values": [match[3]]}
        elif match := _EXISTENCE.fullmatch(term):
            yield {"key": match[2], "operator": "DoesNotExist" if match[1] else "Exists"}
        else:
            raise UsageError(
                f"--selector: '{term}' is not a requirement on labels.",
                hint="Write 'KEY=VALUE', 'KEY!=VALUE', 'KEY in (A,B)', 'KEY' or '!KEY', separated by commas.",
            )


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return True if a LabelSelector selects objects with these labels; an empty selector selects all.

    >>> selects({"matchLabels": {"app": "a"}}, {"app": "a", "x": "y"}), selects({}, {}), selects(None, {})
    (True, True, False)
    """
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    has_all = all(labels.get(key) == value for key, value in wanted.items())
    return has_all and all(_holds(expression, labels) for expression in selector.get("matchExpressions") or ())


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False
