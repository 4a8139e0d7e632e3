"""Where a job stands in a queue of Kueue's: pure, from the job and from what Kueue tells of those that wait."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from kubectl_ddp import roots
from kubectl_ddp.backend import Object, Queued
from kubectl_ddp.conditions import holds

KUEUE_QUEUE: Final = "kueue.x-k8s.io/queue-name"
"""Label by which Kueue knows what it decides about."""

KUEUE_PRIORITY: Final = "kueue.x-k8s.io/priority-class"
"""Label that names the WorkloadPriorityClass; it goes before the priority of the pods."""

OVER: Final = frozenset({"Succeeded", "Failed"})

Place = tuple[str, str]
"""Namespace and name of a LocalQueue."""


def queued(
    job: Object, positions: Mapping[str, int] | None = None, held: Collection[str] = frozenset()
) -> Queued | None:
    """The queue that a job is in; ``None`` when it is in none.

    Args:
        job: the root object.
        positions: uid of a root → its place in line, from 1, of those that wait.
        held: uids of roots that Kueue was told to hold back.
    """
    name = (job["metadata"].get("labels") or {}).get(KUEUE_QUEUE)
    if not name:
        return None
    waits = roots.is_suspend_requested(job) and not OVER & roots.conditions(job).keys()
    uid = str(job["metadata"].get("uid"))
    position = (positions or {}).get(uid) if waits else None
    return Queued(str(name), is_admitted=not waits, position=position, is_held=waits and uid in held)


def queues_of(jobs: Iterable[Object]) -> list[Place]:
    """The queues in which some of these jobs wait."""
    found = ((job["metadata"].get("namespace", ""), at) for job in jobs if (at := queued(job)) and not at.is_admitted)
    return list(dict.fromkeys((str(namespace), at.name) for namespace, at in found))


def positions_from_api(summary: Object) -> dict[str, int]:
    """Places in line as Kueue's visibility API tells them: those in the ClusterQueue, which decides who is next."""
    return {
        uid: int(item.get("positionInClusterQueue", 0)) + 1
        for item in summary.get("items") or ()
        if (uid := owner_of(item))
    }


def estimate_positions(workloads: Sequence[Object], queue: str) -> dict[str, int]:
    """The same for one LocalQueue without that API."""
    waiting = in_line(each for each in workloads if each["spec"].get("queueName") == queue)
    return {uid: number for number, each in enumerate(waiting, 1) if (uid := owner_of(each))}


def in_line(workloads: Iterable[Object]) -> list[Object]:
    """Those of some Workloads that wait, in the order in which Kueue takes them: by priority, then by age."""
    return sorted((each for each in workloads if is_waiting(each)), key=_order)


def is_waiting(workload: Object) -> bool:
    """Whether it is considered and has no quota yet."""
    is_settled = holds(workload, "QuotaReserved") or holds(workload, "Finished")
    return bool(workload["spec"].get("active", True)) and not is_settled


def _order(workload: Object) -> tuple[int, str]:
    return -int(workload["spec"].get("priority") or 0), str(workload["metadata"].get("creationTimestamp", ""))


def owner_of(workload: Object) -> str:
    """Uid of the job that a Workload stands for; empty where it does not say."""
    owners: Sequence[Object] = workload["metadata"].get("ownerReferences") or ({},)
    return str(owners[0].get("uid", ""))
