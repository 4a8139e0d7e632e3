"""Facts about a job as ``why`` looks at them, without a place that they were read of."""

from __future__ import annotations

from collections.abc import Mapping

from kubectl_ddp.kube.objects import Object, RelatedKind, RelatedObjects, Snapshot
from kubectl_ddp.status.job_state import job_state
from kubectl_ddp.status.metrics_parser import parse
from kubectl_ddp.why.diagnosis import run_checks
from kubectl_ddp.why.facts import Facts
from kubectl_ddp.why.model import CauseFinding
from tests.support.kube_objects import CREATED_EPOCH, job_metrics, pod, pod_metrics, rank_metrics, waiting

NOW = CREATED_EPOCH + 600
LATER = "2026-01-02T03:10:05Z"


def facts(
    root: Object,
    *pods: Object,
    around: Mapping[RelatedKind, tuple[Object, ...]] | None = None,
    metrics: Mapping[str, str] | None = None,
    lines: Mapping[str, tuple[str, ...]] | None = None,
    now: float = NOW,
) -> Facts:
    samples = {name: parse(text) for name, text in (metrics or {}).items()}
    snapshot = Snapshot(root, pods)
    return Facts(
        snapshot=snapshot,
        state=job_state(snapshot, samples, where="test"),
        now=now,
        around=RelatedObjects(found={RelatedKind.EVENTS: (), **(around or {})}),
        samples=samples,
        lines=lines or {},
    )


def first(known: Facts) -> CauseFinding:
    return run_checks(known)[0]


def event(reason: str, message: str, name: str = "digits-worker-0", *, kind: str = "Pod", uid: str = "gone") -> Object:
    details = {"kind": kind, "name": name, "uid": uid}
    return {
        "metadata": {"uid": f"{reason}-{name}"},
        "reason": reason,
        "message": message,
        "involvedObject": details,
    } | {"lastTimestamp": LATER}


def refused(message: str, index: int = 0) -> Object:
    made = pod(index, waiting())
    made["status"]["conditions"] = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    ]
    made["spec"].pop("nodeName")
    return made


def trains() -> dict[str, str]:
    return {
        "digits-worker-0": pod_metrics() + job_metrics() + rank_metrics(0, last_step=NOW - 1),
        "digits-worker-1": pod_metrics() + rank_metrics(1, last_step=NOW - 1),
    }
