"""Execution of decisions on the API server.

A resize names the version of the job that was decided on, and an eviction the uid of the pod. The API server refuses
them if another controller has acted meanwhile, so a controller that was paused or cut off cannot change a job twice for
one reason. The size of a PodDisruptionBudget has no version: the controller that decides sets it again.
"""

from __future__ import annotations

import contextlib
import hashlib
import time

from ddp_controller.pod_move import OWN_ROLE, budget_name, budget_of, is_managed, job_owner
from ddp_controller.running_job import Decision, Evict, Resize, RunningJob, SetBudget
from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.read.jobs import path
from kubectl_ddp.errors import AlreadyExists, NotFound
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, timestamp


def execute(api: Api, decision: Decision) -> None:
    """Carry out one decision. Raises the errors of the API server; Conflict if the object has changed meanwhile."""
    match decision:
        case Resize():
            _resize(api, decision)
        case Evict():
            metadata = {"name": decision.pod.name, "uid": decision.pod.uid, "namespace": _namespace(decision)}
            api.evict({"metadata": metadata})
        case SetBudget():
            _set_budget(api, decision)


def merge_same(api: Api, where: str, item: Object, patch: Object) -> None:
    """Change an object of the collection ``where`` by a merge patch. Raises Conflict if another has its name."""
    metadata = item["metadata"]
    api.merge(
        f"{where}/{metadata['name']}", {**patch, "metadata": {**patch.get("metadata", {}), "uid": metadata["uid"]}}
    )


def report_skipped(api: Api, root: Object, reason: str) -> None:
    """Create the event of a job that the controller leaves alone, unless one with this reason exists."""
    message = f"ddp-controller leaves this job alone, because its specification is malformed: {reason}"
    report_event(api, root, "Warning", "SkippedByController", message)


def report_event(api: Api, item: Object, severity: str, reason: str, message: str) -> None:
    """Create an event about an object, unless one with this reason and message exists.

    Args:
        api: API server.
        item: The object.
        severity: ``Normal`` or ``Warning``.
        reason: One word.
        message: One sentence.
    """
    metadata = item["metadata"]
    now = timestamp(time.time())
    event: Object = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name']}.{_digest(metadata['uid'], reason, message)}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": item["apiVersion"],
            "kind": item["kind"],
            **{key: metadata[key] for key in ("namespace", "name", "uid")},
        },
        "type": severity,
        "reason": reason,
        "message": message,
        "source": {"component": "ddp-controller"},
        **dict.fromkeys(("firstTimestamp", "lastTimestamp"), now),
        "count": 1,
    }
    with contextlib.suppress(AlreadyExists):
        api.create(f"/api/v1/namespaces/{metadata['namespace']}/events", event)


def _digest(*texts: str) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


def delete_budgets(api: Api, budgets: list[Object]) -> None:
    """Delete PodDisruptionBudgets of the controller."""
    for budget in budgets:
        metadata = budget["metadata"]
        _delete(api, _budget_path(metadata["namespace"], metadata["name"]), metadata["uid"])


def _resize(api: Api, decision: Resize) -> None:
    job = decision.job
    metadata = job.root["metadata"]
    patch = job_kinds.pods_patch(job.root, decision.size)
    annotations = {**patch.get("metadata", {}).get("annotations", {}), **decision.annotations}
    patch["metadata"] = {**{key: metadata[key] for key in ("uid", "resourceVersion")}, "annotations": annotations}
    api.merge(f"{path(job.engine, _namespace(decision))}/{metadata['name']}", patch)


def _set_budget(api: Api, decision: SetBudget) -> None:
    job, namespace = decision.job, _namespace(decision)
    where = _budget_path(namespace, budget_name(job))
    if decision.min_available is None:
        try:
            found = api.get(where)
        except NotFound:
            return
        if is_managed(found):
            _delete(api, where, found["metadata"]["uid"])
        return
    wanted = budget_of(job, decision.min_available, _owner(api, job))
    try:
        api.create(f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets", wanted)
    except AlreadyExists:
        if not is_managed(api.get(where)):
            raise
        labels = {Label.RUN_ID.value: None, **wanted["spec"]["selector"]["matchLabels"]}
        api.merge(where, {**wanted, "spec": {**wanted["spec"], "selector": {"matchLabels": labels}}})


def _owner(api: Api, job: RunningJob) -> Object:
    """Return the owner of a budget: the controller's ClusterRole, so that no budget outlives the right to manage it.

    A controller that was not installed by the chart has none; then it is the job.
    """
    role = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{OWN_ROLE}"
    try:
        uid = api.get(role)["metadata"]["uid"]
    except NotFound:
        return job_owner(job)
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": OWN_ROLE, "uid": uid}


def _delete(api: Api, where: str, uid: str) -> None:
    try:
        api.delete(where, uid=uid)
    except NotFound:
        return


def _budget_path(namespace: str, name: str) -> str:
    return f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets/{name}"


def _namespace(decision: Decision) -> str:
    return str(decision.job.root["metadata"]["namespace"])
