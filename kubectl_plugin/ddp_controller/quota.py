"""Sizes of elastic jobs by the quota of Kueue's queues. Pure functions.

A job can use the nominal quota of its ClusterQueue, and what the cohort lends.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ddp_controller.running_job import Resize, RunningJob, Timing
from ddp_trainer.common.constants import Annotation
from kubectl_ddp.kube.kueue_queue import flavor_quotas, inactive_reason, is_waiting, owner_of
from kubectl_ddp.kube.objects import Object, holds
from kubectl_ddp.preflight.resources import PODS, Amounts, added, milli_values, requests_of, subtract, times, total

Usage = Mapping[str, Mapping[tuple[str, str], int]]
"""Name of a ClusterQueue → (flavor, resource) → quota that its admitted jobs reserve, in thousandths of the unit."""


@dataclass(frozen=True, slots=True)
class Share:
    """Quota of a ClusterQueue for one resource of one flavor, in thousandths of the resource's unit."""

    resource: str
    quota: int
    used: int
    """Use of the nominal quota and of borrowed quota."""
    lent: int
    """Quota that the cohort lends to this queue, within its limits; negative if it uses quota of this queue."""

    @property
    def free(self) -> int:
        """Amount that a new job can use now."""
        return max(0, self.quota - self.used + self.lent)

    @property
    def unused(self) -> int:
        """Nominal quota that neither this queue nor its cohort uses."""
        return max(0, self.quota - self.used + min(0, self.lent))


def shares_of(cluster: Object, clusters: Sequence[Object], usage: Usage) -> list[Share]:
    """Return the quotas of a ClusterQueue.

    Quotas of Cohort objects and of parents of a cohort are not counted.

    Args:
        cluster: The ClusterQueue.
        clusters: All ClusterQueues, this one included, for the quota that the cohort can lend.
        usage: Quota that jobs reserve.
    """
    found = []
    for flavor, resource in flavor_quotas(cluster):
        quota, name = milli_values(resource), str(resource["name"])
        lent = _lendable_quota(cluster, clusters, usage, (flavor, name))
        lent = min(lent, quota.get("borrowingLimit", lent))
        used = usage[_name(cluster)].get((flavor, name), 0)
        found.append(Share(name, quota["nominalQuota"], used, lent))
    return found


def _lendable_quota(cluster: Object, clusters: Sequence[Object], usage: Usage, which: tuple[str, str]) -> int:
    """Return the unused quota of the other queues in the cohort, less the quota that they have borrowed.

    It is negative if they have borrowed from this queue.
    """
    found = 0
    for other in clusters:
        if other is cluster or not cohort_of(cluster) or cohort_of(other) != cohort_of(cluster):
            continue
        for flavor, resource in flavor_quotas(other):
            if (flavor, resource["name"]) == which:
                quota = milli_values(resource)
                spare = quota["nominalQuota"] - usage[_name(other)].get(which, 0)
                found += min(spare, quota.get("lendingLimit", spare))
    return found


def cohort_of(cluster: Object) -> str:
    """Return the name of the cohort. Its field is ``cohortName`` in v1beta2 and ``cohort`` before."""
    spec = cluster.get("spec") or {}
    return str(spec.get("cohortName") or spec.get("cohort") or "")


def _name(cluster: Object) -> str:
    return str(cluster["metadata"]["name"])


MOST_STEPS: Final = 500
"""Most steps from one size to the next that one pass takes in a ClusterQueue. The next pass continues."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """Elastic job in a ClusterQueue, with its Workload."""

    job: RunningJob
    priority: int
    one: Amounts
    """Resources of one pod."""
    granted: int | None
    """Number of pods for which Kueue has reserved quota; None while the job waits."""

    @property
    def nodes(self) -> int:
        """Number of nodes without spares."""
        return min(self.job.size, self.job.high)

    def lower(self, nodes: int) -> int | None:
        """Return the next smaller size; None at the minimum."""
        index = bisect_left(self.job.sizes, nodes)
        return self.job.sizes[index - 1] if index else None

    def higher(self, nodes: int) -> int | None:
        """Return the next larger size; None at the maximum."""
        index = bisect_right(self.job.sizes, nodes)
        return self.job.sizes[index] if index < len(self.job.sizes) else None

    @property
    def least(self) -> Amounts:
        """Resources of the smallest size with which the job can start."""
        return times(self.one, self.job.pod_count(self.job.sizes[0] if self.job.sizes else self.nodes))


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterQueueState:
    """One ClusterQueue at one moment."""

    name: str
    free: Amounts
    """Quota that a new job can use, with what can be borrowed."""
    own: Amounts
    """Nominal quota that neither this queue nor its cohort uses."""
    waiting: Sequence[Object] = ()
    """Workloads that wait and can fit, in Kueue's order."""
    is_awaited: bool = False
    """True if a job that can fit waits in this queue or in its cohort."""
    jobs: Sequence[QueuedJob] = field(default=())


def decide_sizes(queue: ClusterQueueState, now: float, timing: Timing) -> list[Resize]:
    """Return the changes of size in one ClusterQueue; none within the cool-down of the last change."""
    if any(abs(now - queued.job.resized_at) < timing.cooldown for queued in queue.jobs):
        return []
    running = [
        queued for queued in queue.jobs if queued.granted is not None and queued.job.is_active and not queued.job.move
    ]
    refused = [
        queued
        for queued in running
        if queued.granted is not None and queued.job.size > queued.granted >= queued.job.low
    ]
    if refused:
        why = "Kueue has no quota for the larger size"
        return [_resize(queued, queued.granted or 0, "withdraw", why, now) for queued in refused]
    if any(queued.job.size != queued.granted for queued in running):
        return []  # Kueue has not followed yet
    if queue.waiting:
        return _shrink_jobs(queue, running, now)
    return [] if queue.is_awaited else _expand_jobs(queue, running, now)


def _shrink_jobs(queue: ClusterQueueState, running: Sequence[QueuedJob], now: float) -> list[Resize]:
    head = queue.waiting[0]
    need: Amounts = needs(head, queue.free)
    if _fits(need, queue.free):
        return []  # Kueue admits it
    elastic = next(
        (queued for queued in queue.jobs if queued.job.uid == owner_of(head) and queued.granted is None), None
    )
    if elastic is not None:
        sizes = elastic.job.sizes
        smaller = bisect_left(sizes, elastic.nodes)
        fitting = bisect_left(
            sizes,
            True,
            hi=smaller,
            key=lambda size: not _fits(times(elastic.one, elastic.job.pod_count(size)), queue.free),
        )
        if fitting:
            pods = elastic.job.pod_count(sizes[fitting - 1])
            return [_resize(elastic, pods, "start", "the quota is too small for more", now)]
        need = elastic.least
    owner = next((reference.get("name", "") for reference in head["metadata"].get("ownerReferences") or ()), "")
    why = f"{head['metadata'].get('namespace')}/{owner} waits and has a higher priority"
    priority = int(head["spec"].get("priority") or 0)
    plan = _shrink_plan([queued for queued in running if queued.priority < priority], need, queue.free)
    return [_resize(queued, queued.job.pod_count(nodes), "shrink", why, now) for queued, nodes in plan]


def _shrink_plan(running: Sequence[QueuedJob], need: Amounts, free: Amounts) -> list[tuple[QueuedJob, int]]:
    """Return the smaller sizes with which ``need`` fits; empty if it does not fit even then.

    After :data:`MOST_STEPS` it returns what it has; the next pass continues.
    """
    if not _fits(need, total([free, *(_reclaimable(queued, free) for queued in running)])):
        return []
    by_age = sorted(running, key=lambda queued: str(queued.job.root["metadata"].get("creationTimestamp")), reverse=True)
    nodes = {queued.job.uid: queued.nodes for queued in by_age}
    room = dict(free)
    for _ in range(MOST_STEPS):
        if _fits(need, room):
            break
        lacking = {name for name, amount in need.items() if amount > room.get(name, 0)}
        givers = [
            queued
            for queued in by_age
            if queued.lower(nodes[queued.job.uid]) is not None and lacking & _used_by(queued.one)
        ]
        giver = min(givers, key=lambda queued: (queued.priority, -_steps_above_minimum(queued, nodes[queued.job.uid])))
        smaller = giver.lower(nodes[giver.job.uid]) or 0
        room = added(room, _released(giver, nodes[giver.job.uid], smaller, room))
        nodes[giver.job.uid] = smaller
    return [(queued, nodes[queued.job.uid]) for queued in by_age if nodes[queued.job.uid] != queued.nodes]


def _reclaimable(queued: QueuedJob, room: Amounts) -> Amounts:
    """Return what a job frees at its minimum, of the resources in ``room``."""
    return _released(queued, queued.nodes, queued.job.sizes[0], room) if queued.lower(queued.nodes) is not None else {}


def _released(queued: QueuedJob, nodes: int, smaller: int, room: Amounts) -> Amounts:
    freed = times(queued.one, queued.job.pod_count(nodes) - queued.job.pod_count(smaller))
    return {name: amount for name, amount in freed.items() if name in room}


def _expand_jobs(queue: ClusterQueueState, running: Sequence[QueuedJob], now: float) -> list[Resize]:
    by_age = sorted(running, key=lambda queued: str(queued.job.root["metadata"].get("creationTimestamp")))
    nodes = {queued.job.uid: queued.nodes for queued in by_age}
    room: Amounts = queue.own

    def step(queued: QueuedJob) -> dict[str, int] | None:
        """Return what the next larger size needs; None if it does not fit."""
        larger = queued.higher(nodes[queued.job.uid])
        if larger is None:
            return None
        wanted = times(queued.one, queued.job.pod_count(larger) - queued.job.pod_count(nodes[queued.job.uid]))
        return wanted if _fits(wanted, room) else None

    for _ in range(MOST_STEPS):
        takers = [queued for queued in by_age if step(queued) is not None]
        if not takers:
            break
        taker = min(takers, key=lambda queued: (-queued.priority, _share_of_range(queued, nodes[queued.job.uid])))
        room = subtract(room, step(taker) or {})
        nodes[taker.job.uid] = taker.higher(nodes[taker.job.uid]) or 0
    grown = [queued for queued in by_age if nodes[queued.job.uid] != queued.nodes]
    return [
        _resize(queued, queued.job.pod_count(nodes[queued.job.uid]), "grow", "quota is free", now) for queued in grown
    ]


def cluster_queues(
    jobs: Sequence[RunningJob], workloads: Sequence[Object], local_queues: Sequence[Object], clusters: Sequence[Object]
) -> Iterator[ClusterQueueState]:
    """Yield the state of each ClusterQueue with elastic jobs.

    A queue that is not active is left out, and one with several flavors of a resource: which of them a job would get
    cannot be predicted.
    """
    leads = {_place(queue): str(queue["spec"]["clusterQueue"]) for queue in local_queues if not inactive_reason(queue)}
    active = {
        str(cluster_queue["metadata"]["name"]): cluster_queue
        for cluster_queue in clusters
        if not inactive_reason(cluster_queue)
    }
    usage = reserved_quota(clusters, workloads)
    shares = {name: shares_of(cluster_queue, clusters, usage) for name, cluster_queue in active.items()}
    most = {name: _max_quota(cluster_queue) for name, cluster_queue in shares.items()}
    found: dict[str, list[QueuedJob]] = {name: [] for name in active}
    elastic: dict[tuple[str, str], QueuedJob] = {}
    by_owner: dict[str, list[Object]] = {}
    for workload in workloads:
        by_owner.setdefault(owner_of(workload), []).append(workload)
    for job in jobs:
        name = leads.get(job.place, "")
        is_elastic = job.uses_workload_slices and job.low < job.high and not job.is_ended
        if is_elastic and name in active and (queued := _queued(job, by_owner.get(job.uid, ()), most[name])):
            found[name].append(queued)
            elastic[name, job.uid] = queued
    running = {queued.job.uid for queued_jobs in found.values() for queued in queued_jobs if queued.granted is not None}
    waiting: dict[str, list[Object]] = {name: [] for name in active}
    for workload in sorted(filter(is_waiting, workloads), key=_order):
        name = leads.get((str(workload["metadata"].get("namespace")), str(workload["spec"].get("queueName"))), "")
        if (
            name in active
            and owner_of(workload) not in running
            and _fits(_least(workload, elastic.get((name, owner_of(workload))), most[name]), most[name])
        ):
            waiting[name].append(workload)
    for name, cluster in active.items():
        free = {share.resource: share.free for share in shares[name]}
        own = {share.resource: share.unused for share in shares[name]}
        if not found[name] or len(free) != len(shares[name]):
            continue
        cohort = [
            other for other, cluster_queue in active.items() if cohort_of(cluster_queue) == cohort_of(cluster) != ""
        ]
        is_awaited = any(waiting[other] for other in (name, *cohort))
        yield ClusterQueueState(
            name=name, free=free, own=own, waiting=waiting[name], is_awaited=is_awaited, jobs=found[name]
        )


def _order(workload: Object) -> tuple[int, str]:
    """Sort key of waiting Workloads in the order in which Kueue admits them: by priority, then by age."""
    return -int(workload["spec"].get("priority") or 0), str(workload["metadata"].get("creationTimestamp", ""))


def _max_quota(shares: Iterable[Share]) -> dict[str, int]:
    """Return the quota that a queue could use if all its jobs ended, of the flavor with most of each resource."""
    found: dict[str, int] = {}
    for share in shares:
        found[share.resource] = max(found.get(share.resource, 0), share.free + share.used)
    return found


def reserved_quota(clusters: Sequence[Object], workloads: Sequence[Object]) -> Usage:
    """Return the quota that the Workloads reserve now.

    The status of ClusterQueues is seconds late: by it, the quota of a job that was just admitted would seem to be free.
    """
    used: dict[str, dict[tuple[str, str], int]] = {
        str(cluster_queue["metadata"]["name"]): {} for cluster_queue in clusters
    }
    for workload in workloads:
        admission = (workload.get("status") or {}).get("admission") or {}
        if not holds(workload, "QuotaReserved") or holds(workload, "Finished"):
            continue
        amounts = used.setdefault(str(admission.get("clusterQueue")), {})
        flavors = {
            str(pods.get("name")): pods.get("flavors") or {} for pods in admission.get("podSetAssignments") or ()
        }
        for pods, count in _pod_counts(workload):
            for resource, flavor in flavors.get(str(pods.get("name")), {}).items():
                amount = _one(pods, {resource: 0}).get(resource, 0) * count
                amounts[flavor, resource] = amounts.get((flavor, resource), 0) + amount
    return used


def needs(workload: Object, covered: Amounts) -> dict[str, int]:
    """Return the resources of all pods of a Workload. Pods count only where the quota covers them."""
    return total(times(_one(pods, covered), count) for pods, count in _pod_counts(workload))


def _pod_counts(workload: Object) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Yield each pod set with the number of its pods that use quota, as Kueue counts them.

    These are the pods of its specification without those that have ended, and not more than Kueue has admitted.
    """
    status = workload.get("status") or {}
    assigned = (status.get("admission") or {}).get("podSetAssignments") or ()
    admitted = {pod_set["name"]: int(pod_set["count"]) for pod_set in assigned if pod_set.get("count") is not None}
    ended = {pod_set["name"]: int(pod_set["count"]) for pod_set in status.get("reclaimablePods") or ()}
    for pods in workload["spec"].get("podSets") or ():
        count = int(pods.get("count", 1)) - ended.get(pods["name"], 0)
        yield pods, max(0, min(count, admitted.get(pods["name"], count)))


def _least(workload: Object, elastic: QueuedJob | None, covered: Amounts) -> Amounts:
    """Return the least resources with which the job of a Workload can start."""
    return elastic.least if elastic is not None and elastic.job.sizes else needs(workload, covered)


def _one(pods: Mapping[str, object], covered: Amounts) -> dict[str, int]:
    template: Object = pods["template"]  # type: ignore[assignment]
    return {name: amount for name, amount in requests_of(template["spec"]).items() if name in covered or name != PODS}


def _queued(job: RunningJob, workloads: Sequence[Object], covered: Amounts) -> QueuedJob | None:
    """Return a job with one of its Workloads; None if it has none yet."""
    unfinished = [workload for workload in workloads if not holds(workload, "Finished")]
    reserved = [workload for workload in unfinished if holds(workload, "QuotaReserved")]
    newest = max(
        reserved or unfinished, key=lambda workload: str(workload["metadata"].get("creationTimestamp")), default=None
    )
    if newest is None or len(newest["spec"]["podSets"]) != 1:
        return None
    pods = newest["spec"]["podSets"][0]
    return QueuedJob(
        job=job,
        priority=int(newest["spec"].get("priority") or 0),
        one=_one(pods, covered),
        granted=int(pods["count"]) if reserved else None,
    )


def _resize(queued: QueuedJob, pods: int, action: str, reason: str, now: float) -> Resize:
    annotation = {
        "wanted": queued.job.high,
        "granted": min(pods, queued.job.high),
        "reason": reason,
        "since": round(now, 1),
    }
    annotations: dict[str, str | None] = {Annotation.SIZE: json.dumps(annotation)}
    return Resize(job=queued.job, size=pods, annotations=annotations, action=action, reason=reason)


def _fits(wanted: Amounts, room: Amounts) -> bool:
    return all(amount <= room.get(name, 0) for name, amount in wanted.items())


def _used_by(one: Amounts) -> set[str]:
    return {name for name, amount in one.items() if amount}


def _steps_above_minimum(queued: QueuedJob, nodes: int) -> int:
    return bisect_left(queued.job.sizes, nodes)


def _share_of_range(queued: QueuedJob, nodes: int) -> float:
    return (nodes - queued.job.low) / max(1, queued.job.high - queued.job.low)


def _place(item: Object) -> tuple[str, str]:
    return str(item["metadata"].get("namespace")), str(item["metadata"]["name"])
