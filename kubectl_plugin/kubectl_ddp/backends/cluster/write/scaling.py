"""Size and suspension of a job: the patch for a new number of worker pods, and suspension through Kueue's Workloads.

If ``suspend`` is set on a job that Kueue has admitted, Kueue immediately resumes the job. Therefore the job's Workload
is changed: ``spec.active: false`` evicts the job, releases its quota, and excludes it from admission until the field is
``true`` again (https://kueue.sigs.k8s.io/docs/concepts/workload/#active).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.backends.cluster.read.kueue_workloads import list_workloads, uid_of
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import DdpError, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE, is_resizable, requests_elastic
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.values.program import QueueResize
from kubectl_ddp.values.quantity import validate_node_count


def to_scale(job: Object, nodes: int) -> Object:
    """Return the patch that sets the number of a job's worker pods. Raises UsageError if the job does not allow it."""
    if KUEUE_QUEUE in job["metadata"]["labels"] and not is_resizable(job):
        raise _not_resizable(job)
    validate_node_count(job_kinds.bounds(job), job["metadata"]["name"], nodes)
    return job_kinds.pods_patch(job, job_kinds.pod_count(job, nodes))


def _not_resizable(job: Object) -> UsageError:
    name = job["metadata"]["name"]
    if requests_elastic(job):
        return UsageError(
            f"Job '{name}' is in a queue of Kueue's whose feature gate ElasticJobsViaWorkloadSlices is off.",
            hint="Ask the administrator of Kueue to turn it on, or submit it again with other --nnodes.",
        )
    return UsageError(
        f"Job '{name}' is in a queue of Kueue's, which stops a job that is scaled while it runs.",
        hint=f"Submit it again with other --nnodes, or with --queue-resize {QueueResize.RUNNING}.",
    )


def scaling_error(job: Object, refusal: UsageError) -> UsageError:
    """Return the error for a job whose engine keeps its number of pods, with the reason that the API server gave."""
    if "immutable" not in refusal.message:
        return refusal
    kind, name = job_kinds.engine_of(job), job["metadata"]["name"]
    others = " or ".join(other.name for other in ENGINES.values() if other.is_scalable)
    why, fix = f"{kind.operator.name} does not let {kind.nodes[0][-1]} change", ""
    if kind.scaling_gate:
        why = f"the feature gate {kind.scaling_gate} of {kind.operator.name} is off"
        fix = "Set the gate in the controller's configuration, or s"
    return UsageError(
        f"A {kind.kind} such as '{name}' cannot be scaled while it runs: {why}.",
        hint=f"{fix or 'S'}ubmit it again with other --nnodes, or with --engine {others}.",
    )


TRIES: Final = 20
PAUSE_SECONDS: Final = 0.5
"""Pause between attempts, in seconds. Kueue usually creates the Workload within a second of the job."""


TEMPLATE_ANNOTATIONS: Final = ("kueue.x-k8s.io/workload", "kueue.x-k8s.io/workload-slice-name")
"""Annotations that Kueue writes into the pod template of a resizable job."""


def stale_annotations(job: Object) -> Object:
    """Return the patch that removes Kueue's annotations from the pod template of a stopped job; empty without any.

    Kueue before its pull requests 12994 and 13131 does not start a job whose template names an earlier slice.
    """
    found = job_kinds.at(job, ("spec", "template", "metadata", "annotations")) or {}
    if not (is_resizable(job) and job_kinds.is_suspend_requested(job)) or not found.keys() & set(TEMPLATE_ANNOTATIONS):
        return {}
    return {"spec": {"template": {"metadata": {"annotations": dict.fromkeys(TEMPLATE_ANNOTATIONS)}}}}


def set_active(api: Api, job: Object, *, active: bool, sleep: Callable[[float], None] = time.sleep) -> bool:
    """Activate or deactivate the Workload of a job. Returns false if Kueue does not manage the job.

    Raises:
        DdpError: If Kueue should manage the job and has not created its Workload yet.
        Forbidden: If the Workload may not be changed.
    """
    if KUEUE_QUEUE not in (job["metadata"].get("labels") or {}):
        return False
    namespace = job["metadata"]["namespace"]
    for left in reversed(range(TRIES)):
        try:
            found = list(list_workloads(api, namespace, {uid_of(job)}))
        except NotServed:
            return False
        for path, workload in found:
            metadata = workload["metadata"]
            api.merge(f"{path}/{metadata['name']}", {"metadata": {"uid": metadata["uid"]}, "spec": {"active": active}})
        if found:
            return True
        if not job_kinds.is_suspend_requested(job):  # it runs unmanaged: Kueue does not manage its kind
            return False
        if left:
            sleep(PAUSE_SECONDS)
    raise DdpError(
        f"Kueue has not created a Workload for job '{job['metadata']['name']}' yet, so there is nothing to change.",
        hint="Check that Kueue runs and manages this kind of job, and try again.",
    )
