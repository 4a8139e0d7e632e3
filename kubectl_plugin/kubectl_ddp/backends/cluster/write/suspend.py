"""Suspension of jobs through Kueue's Workloads.

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
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE, is_resizable
from kubectl_ddp.kube.objects import Object

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
            about = workload["metadata"]
            api.merge(f"{path}/{about['name']}", {"metadata": {"uid": about["uid"]}, "spec": {"active": active}})
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
