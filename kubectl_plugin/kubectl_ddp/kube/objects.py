"""Kubernetes objects as JSON: conditions, containers, label selectors, all objects of one job, and those around it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from ddp_trainer.common.constants import Role
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import UsageError

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
