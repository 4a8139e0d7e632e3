"""Jobs as the controller sees them, for its tests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ddp_controller.lease import NAME
from ddp_controller.running_job import RunningJob, Timing, running_job
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot, timestamp

NOW = 1_800_000_000.0
TIMING = Timing(settle=10, replacement_timeout=120, cooldown=3)
GROUPS = {
    "/api/v1": {"Pod": "pods", "Node": "nodes", "Event": "events"},
    "/apis/batch/v1": {"Job": "jobs"},
    "/apis/kubeflow.org/v1": {"PyTorchJob": "pytorchjobs"},
    "/apis/policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "/apis/coordination.k8s.io/v1": {"Lease": "leases"},
    "/apis/rbac.authorization.k8s.io/v1": {"ClusterRole": "clusterroles"},
}
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/team/leases/{NAME}"
DRAINING = "doomed"
FINE = "fine"
APART = "apart"


def root(
    size: int = 2,
    *,
    nnodes: str = "2",
    engine: str = "job",
    queue: str = "",
    elastic: bool = False,
    gated: bool = True,
    name: str = "digits",
    annotations: dict[str, str] | None = None,
    suspended: bool = False,
    **spec: Any,
) -> Object:
    """A root object of ``size`` pods. Kueue has gated the pods of an elastic one unless its feature gate is off."""
    kind = ENGINES[engine]
    labels = {"ddp.dev/job": name, "ddp.dev/run-id": "r1"}
    labels |= {"kueue.x-k8s.io/queue-name": queue} if queue else {}
    notes = {"ddp.dev/spec": json.dumps({"nnodes": nnodes, **spec})}
    notes |= ({"kueue.x-k8s.io/elastic-job": "true"} if elastic else {}) | (annotations or {})
    metadata = {"name": name, "namespace": "team", "uid": f"uid-{name}", "labels": labels, "annotations": notes}
    metadata |= {"resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z"}
    job: Object = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": {}, "status": {}}
    for path in kind.nodes:
        _put(job, path, size)
    _put(job, kind.suspend, suspended)
    if elastic and gated:
        _put(job, ("spec", "template", "spec", "schedulingGates"), [{"name": "kueue.x-k8s.io/elastic-job"}])
    return job


def _put(item: Object, path: Sequence[str | int], value: Any) -> None:
    """Set a value, also below lists that do not exist yet, as those of a JobSet."""
    lists = [index for index, key in enumerate(path) if isinstance(key, int)]
    if lists and job_kinds.at(item, tuple(path[: lists[0] + 1])) is None:
        job_kinds.put(item, tuple(path[: lists[0]]), [{}])
    job_kinds.put(item, tuple(path), value)


def pod(
    index: int,
    node: str = FINE,
    *,
    ready: float | None = 600,
    waits: float = 0,
    leaving: bool = False,
    name: str = "digits",
) -> Object:
    """A worker pod that has been ready for some seconds; None if it is not, since ``waits`` seconds."""
    since = timestamp(NOW - (waits if ready is None else ready))
    metadata: Object = {"name": f"{name}-{index}", "namespace": "team", "uid": f"{name}-{index}"}
    metadata["labels"] = {"ddp.dev/job": name, "ddp.dev/role": "worker", "ddp.dev/run-id": "r1", "job-name": name}
    if leaving:
        metadata["deletionTimestamp"] = since
    condition = {"type": "Ready", "status": "False" if ready is None else "True", "lastTransitionTime": since}
    status = {"phase": "Running", "conditions": [condition]}
    return {"metadata": metadata, "spec": {"nodeName": node, "containers": [{"name": "pytorch"}]}, "status": status}


def store(node: str = APART, *, runs: float | None = 600, name: str = "digits") -> Object:
    """The pod of the store, whose container has run for some seconds; None if it does not."""
    made = pod(0, node, ready=None, name=f"{name}-store")
    made["metadata"]["labels"] |= {"ddp.dev/job": name, "ddp.dev/role": "store"}
    state = {"waiting": {}} if runs is None else {"running": {"startedAt": timestamp(NOW - runs)}}
    made["status"]["containerStatuses"] = [{"state": state}]
    return made


def seen(job: Object, *pods: Object) -> RunningJob:
    """The job with its pods, and a store if they have none; the node ``doomed`` is cordoned."""
    has_store = any(item["metadata"]["labels"]["ddp.dev/role"] == "store" for item in pods)
    return running_job(Snapshot(job, pods if has_store else (*pods, store())), {DRAINING: "cordoned"})


def moving(size: int, *, seconds_ago: float = 20) -> dict[str, str]:
    """The annotation of a move that began with this size."""
    return {"ddp.dev/move": json.dumps({"size": size, "since": NOW - seconds_ago})}
