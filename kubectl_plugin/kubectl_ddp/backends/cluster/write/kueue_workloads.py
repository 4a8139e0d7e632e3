"""Suspension of jobs through Kueue's Workloads.

If ``suspend`` is set on a job that Kueue has admitted, Kueue immediately resumes the job. Therefore the job's Workload
is changed: ``spec.active: false`` evicts the job, releases its quota, and excludes it from admission until the field is
``true`` again (https://kueue.sigs.k8s.io/docs/concepts/workload/#active).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from kubectl_ddp.backends.base import Object, Queued
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.backends.cluster.http.resources import collection
from kubectl_ddp.backends.cluster.read.kueue_positions import WORKLOADS, queue_positions
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE, owner_of, queued

JOB_UID: Final = "kueue.x-k8s.io/job-uid"
"""Label of a Workload with the uid of its job."""

MOST_NAMED: Final = 50
"""Maximum number of uids in a selector. With more, all Workloads of the namespace are read."""

TRIES: Final = 20
PAUSE_SECONDS: Final = 0.5
"""Pause between attempts, in seconds. Kueue usually creates the Workload within a second of the job."""


def queue_state_lookup(api: Api, jobs: Sequence[Object]) -> Callable[[Object], Queued | None]:
    """Return a function from a job to its queue. No request is sent if no job waits in a queue.

    Workloads are read only for waiting jobs without a position, because a job with a position is active.
    """
    places = queue_positions(api, jobs)
    waiting = [job for job in jobs if (at := queued(job, places)) and not at.is_admitted and at.position is None]
    held = inactive_uids(api, waiting)
    return lambda job: queued(job, places, held)


def inactive_uids(api: Api, jobs: Sequence[Object]) -> set[str]:
    """Return the uids of the jobs whose Workload is inactive; empty if Workloads may not be read."""
    found: set[str] = set()
    for namespace in dict.fromkeys(str(job["metadata"].get("namespace", "")) for job in jobs):
        uids = {_uid(job) for job in jobs if job["metadata"].get("namespace", "") == namespace}
        try:
            workloads = [each for _, each in _list_workloads(api, namespace, uids)]
        except DdpError:  # the jobs themselves may still be readable
            continue
        found |= {owner_of(each) for each in workloads if not each["spec"].get("active", True)}
    return found


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
            found = list(_list_workloads(api, namespace, {_uid(job)}))
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
        f"Kueue has not taken notice of job '{job['metadata']['name']}' yet, so it can be told nothing about it.",
        hint="See that Kueue runs and manages this kind of job, and try again.",
    )


def _list_workloads(api: Api, namespace: str, uids: Collection[str]) -> Iterator[tuple[str, Object]]:
    """Yield the Workloads of these jobs, each with the path of its collection. Raises NotServed without Kueue."""
    named = f"{JOB_UID} in ({','.join(sorted(uids))})" if len(uids) <= MOST_NAMED else ""
    for version in WORKLOADS:
        path = collection(version, "workloads", namespace)
        try:
            items, _ = api.items(path, labelSelector=named)
        except NotServed:
            if version == WORKLOADS[-1]:
                raise
            continue
        yield from ((path, each) for each in items if owner_of(each) in uids)
        return


def _uid(job: Object) -> str:
    return str(job["metadata"].get("uid", ""))
