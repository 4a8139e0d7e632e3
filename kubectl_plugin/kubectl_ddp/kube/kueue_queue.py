"""Queues of Kueue: the queue and position of a job, Workloads, and the quotas of ClusterQueues. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from kubectl_ddp.engines import Operator
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Queued, condition_of, holds

KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label with the name of a job's LocalQueue. Kueue manages only objects that have it."""

KUEUE_PRIORITY: Final = "kueue.x-k8s.io/priority-class"
"""Label with the WorkloadPriorityClass, which takes precedence over the priority of the pods."""

KUEUE_ELASTIC: Final = "kueue.x-k8s.io/elastic-job"
"""Annotation of a job that may grow and shrink while it runs, if it is ``true``; also the gate of its pods."""

KUEUE_MIN_PARALLELISM: Final = "kueue.x-k8s.io/job-min-parallelism"
"""Annotation with the minimum of pods to which Kueue may shrink a job when it admits it."""

KUEUE: Final = Operator(name="Kueue", selector="app.kubernetes.io/name=kueue")

OVER: Final = frozenset({"Succeeded", "Failed"})

Place = tuple[str, str]
"""Namespace and name of a LocalQueue."""


def queued(
    job: Object, positions: Mapping[str, int] | None = None, held: Collection[str] = frozenset()
) -> Queued | None:
    """Return the queue of a job; ``None`` if it is in none.

    Args:
        job: Root object.
        positions: Uid of a root object → its position among the waiting jobs, from 1.
        held: Uids of root objects whose Workload is inactive.
    """
    name = (job["metadata"].get("labels") or {}).get(KUEUE_QUEUE)
    if not name:
        return None
    waits = job_kinds.is_suspend_requested(job) and not OVER & job_kinds.conditions(job).keys()
    uid = str(job["metadata"].get("uid"))
    position = (positions or {}).get(uid) if waits else None
    return Queued(str(name), is_admitted=not waits, position=position, is_held=waits and uid in held)


def is_resizable(job: Object) -> bool:
    """Return whether Kueue lets a job in its queue grow and shrink while it runs.

    Kueue then adds a scheduling gate to the job's pods. Without the feature, it ignores the annotation.
    """
    gates = job_kinds.at(job, ("spec", "template", "spec", "schedulingGates")) or ()
    return any(gate.get("name") == KUEUE_ELASTIC for gate in gates)


def requests_elastic(job: Object) -> bool:
    """Return whether a job requests to grow and shrink in its queue while it runs."""
    return (job["metadata"].get("annotations") or {}).get(KUEUE_ELASTIC) == "true"


def is_partially_admitted(job: Object) -> bool:
    """Return whether Kueue may have admitted a job with fewer nodes than wanted."""
    return KUEUE_MIN_PARALLELISM in (job["metadata"].get("annotations") or {})


def queues_of(jobs: Iterable[Object]) -> list[Place]:
    """Return the queues in which at least one of these jobs waits."""
    found = ((job["metadata"].get("namespace", ""), at) for job in jobs if (at := queued(job)) and not at.is_admitted)
    return list(dict.fromkeys((str(namespace), at.name) for namespace, at in found))


def positions_from_api(summary: Object) -> dict[str, int]:
    """Return positions from Kueue's visibility API: those in the ClusterQueue, which decide the order of admission."""
    return {
        uid: int(item.get("positionInClusterQueue", 0)) + 1
        for item in summary.get("items") or ()
        if (uid := owner_of(item))
    }


def is_waiting(workload: Object) -> bool:
    """Return whether a Workload is active, unfinished and without quota."""
    is_settled = holds(workload, "QuotaReserved") or holds(workload, "Finished")
    return bool(workload["spec"].get("active", True)) and not is_settled


def owner_of(workload: Object) -> str:
    """Return the uid of a Workload's job; empty if unknown."""
    owners: Sequence[Object] = workload["metadata"].get("ownerReferences") or ({},)
    return str(owners[0].get("uid", ""))


def inactive_reason(queue: Object) -> str:
    """Return the reason why a LocalQueue or a ClusterQueue accepts no jobs; empty if it is active."""
    active = condition_of(queue, "Active")
    if active.get("status") != "False":
        return ""
    return str(active.get("message") or active.get("reason") or "it is not active").rstrip(".")


def flavor_quotas(cluster: Object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each flavor of a ClusterQueue with each of its quotas: ``name``, ``nominalQuota``, and limits if set."""
    for group in (cluster.get("spec") or {}).get("resourceGroups") or ():
        for flavor in group["flavors"]:
            for quota in flavor["resources"]:
                yield str(flavor["name"]), {name: value for name, value in quota.items() if value is not None}
