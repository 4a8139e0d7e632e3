"""Waiting jobs in Kueue: their positions, from its visibility API, and which are held, from their Workloads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Final

from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.kueue_queue import Place, owner_of, positions_from_api, queued, queues_of
from kubectl_ddp.kube.objects import Object, Queued
from kubectl_ddp.util.concurrency import map_in_threads

VISIBILITY: Final = ("visibility.kueue.x-k8s.io/v1beta2", "visibility.kueue.x-k8s.io/v1beta1")
WORKLOADS: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
JOB_UID: Final = "kueue.x-k8s.io/job-uid"
"""Label of a Workload with the uid of its job."""

MOST_NAMED: Final = 50
"""Maximum number of uids in a selector. With more, all Workloads of the namespace are read."""


def queue_state_lookup(api: Api, jobs: Sequence[Object]) -> Callable[[Object], Queued | None]:
    """Return a function from a job to its queue. No request is sent if no job waits in a queue.

    Workloads are read only for waiting jobs without a position, because a job with a position is active.
    """
    places = queue_positions(api, jobs)
    waiting = [job for job in jobs if (at := queued(job, places)) and not at.is_admitted and at.position is None]
    held = inactive_uids(api, waiting)
    return lambda job: queued(job, places, held)


def queue_positions(api: Api, jobs: Iterable[Object]) -> dict[str, int]:
    """Return uid of a root object → its position, from 1. Jobs with an unknown position are left out.

    One request is sent per queue, and none if no job waits.
    """
    found: dict[str, int] = {}
    for answer in map_in_threads(lambda place: _positions_in(api, place), queues_of(jobs)):
        found |= answer
    return found


def _positions_in(api: Api, place: Place) -> dict[str, int]:
    namespace, queue = place
    for version in VISIBILITY:
        try:
            return positions_from_api(
                api.get(f"{collection(version, 'localqueues', namespace)}/{queue}/pendingworkloads")
            )
        except NotServed:
            continue
        except DdpError:  # forbidden or unavailable
            break
    return {}


def inactive_uids(api: Api, jobs: Sequence[Object]) -> set[str]:
    """Return the uids of the jobs whose Workload is inactive; empty if Workloads may not be read."""
    found: set[str] = set()
    for namespace in dict.fromkeys(str(job["metadata"].get("namespace", "")) for job in jobs):
        uids = {uid_of(job) for job in jobs if job["metadata"].get("namespace", "") == namespace}
        try:
            workloads = [workload for _, workload in list_workloads(api, namespace, uids)]
        except DdpError:  # the jobs themselves may still be readable
            continue
        found |= {owner_of(workload) for workload in workloads if not workload["spec"].get("active", True)}
    return found


def list_workloads(api: Api, namespace: str, uids: Collection[str]) -> Iterator[tuple[str, Object]]:
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
        yield from ((path, item) for item in items if owner_of(item) in uids)
        return


def uid_of(job: Object) -> str:
    """Return the uid of a job; empty if it has none."""
    return str(job["metadata"].get("uid", ""))
