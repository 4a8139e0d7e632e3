"""Forecast of an admission by Kueue: which jobs have to end or shrink for a job to be admitted, and when."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from kubectl_ddp.kube.conditions import condition_of, holds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.kube.timestamps import epoch
from kubectl_ddp.preflight.kueue_quota import (
    FlavorAmounts,
    Share,
    Usage,
    choose_flavors,
    cohort_members,
    groups_of,
    share_to_dict,
    shares_of,
    usage_of,
)
from kubectl_ddp.preflight.quantities import Amounts, milli_values, requests_of, times, total

STRICT: Final = "StrictFIFO"
"""Strategy of a ClusterQueue in which no job overtakes another."""


@dataclass(frozen=True, slots=True)
class HolderProgress:
    """Expected end and minimum size of a job that holds quota."""

    eta_seconds: float | None
    least: int | None
    """Minimum number of nodes to which the job can be scaled in its queue; ``None`` if it cannot be scaled there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaHolder:
    """Job that holds quota, from its Workload."""

    name: str
    namespace: str
    kind: str
    uid: str
    """Uid of the job; that of the Workload if the job is not known."""
    cluster_queue: str
    pods: int
    priority: int
    since: float
    """Time of the admission as Unix time; 0 if unknown."""
    usage: FlavorAmounts
    progress: HolderProgress = HolderProgress(None, None)

    @property
    def end_order(self) -> tuple[float, int, float]:
        """Sort key: the earliest end first, then the lowest priority, then the newest admission."""
        eta = self.progress.eta_seconds
        return math.inf if eta is None else eta, self.priority, -self.since


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """Quota that a job waits for, and the jobs that have to end or shrink first."""

    cluster_queue: str
    quotas: tuple[tuple[Share, int], ...]
    """Quotas of the requested resources, each with the requested amount."""
    holders: tuple[QuotaHolder, ...]
    """Visible jobs that hold quota of the ClusterQueue or its cohort, in the order of their expected end."""
    must_end: tuple[QuotaHolder, ...] | None
    """Jobs whose end frees enough; empty if there is enough, ``None`` if the visible jobs do not hold enough."""
    shrink_to: Mapping[str, int] = field(default_factory=dict)
    """Uid of a job in ``must_end`` → number of nodes to which it can shrink instead of ending."""
    is_after_ahead: bool = False
    """True if the jobs ahead in the queue take all that can become free, so they have to end too."""
    unseen: FlavorAmounts = field(default_factory=dict)
    """Quota of the ClusterQueue that is held by jobs that could not be read."""

    @property
    def is_never_enough(self) -> bool:
        """True if no flavor has enough of a resource, even if all others end and the cohort lends all it may."""
        most: dict[str, bool] = {}
        for share, wanted in self.quotas:
            fits = share.ceiling is None or share.ceiling >= wanted
            most[share.resource] = most.get(share.resource, False) or fits
        return not all(most.values())

    @property
    def is_enough(self) -> bool:
        """True if there is enough quota now."""
        return self.must_end == () and not self.is_after_ahead

    @property
    def eta_seconds(self) -> float | None:
        """Seconds until the jobs in ``must_end`` have ended; ``None`` if unknown."""
        etas = [holder.progress.eta_seconds for holder in self.must_end or ()]
        if self.is_after_ahead or not etas:
            return None
        return None if None in etas else max(filter(None, etas), default=0.0)


def quota_holders(workloads: Iterable[Object], cluster: Object, clusters: Sequence[Object]) -> list[QuotaHolder]:
    """Return the jobs that hold quota of a ClusterQueue or its cohort."""
    names = {str(each["metadata"]["name"]) for each in cohort_members(cluster, clusters)}
    found = (_holder(each) for each in workloads if holds(each, "QuotaReserved") and not holds(each, "Finished"))
    return [holder for holder in found if holder.cluster_queue in names]


def _holder(workload: Object) -> QuotaHolder:
    about = workload["metadata"]
    owner = next(iter(about.get("ownerReferences") or ()), about)
    admission = (workload.get("status") or {}).get("admission") or {}
    assigned = admission.get("podSetAssignments") or ()
    usage: dict[tuple[str, str], int] = {}
    for each in assigned:
        for resource, amount in milli_values(each.get("resourceUsage")).items():
            which = str((each.get("flavors") or {}).get(resource, "")), resource
            usage[which] = usage.get(which, 0) + amount
    sizes = assigned or workload["spec"].get("podSets") or ()
    return QuotaHolder(
        name=str(owner.get("name", "")),
        namespace=str(about.get("namespace", "")),
        kind=str(owner.get("kind") or "Workload"),
        uid=str(owner.get("uid", "")),
        cluster_queue=str(admission.get("clusterQueue", "")),
        pods=sum(int(each.get("count") or 0) for each in sizes),
        priority=int(workload["spec"].get("priority") or 0),
        since=epoch(condition_of(workload, "QuotaReserved").get("lastTransitionTime")) or 0.0,
        usage=usage,
    )


def requested_amounts(workload: Object) -> dict[str, int]:
    """Return the requests of a waiting Workload, with the minimum of pods if Kueue may admit it partially."""
    status = workload.get("status") or {}
    told = {each["name"]: milli_values(each.get("resources")) for each in status.get("resourceRequests") or ()}
    found = []
    for pods in workload["spec"].get("podSets") or ():
        count = int(pods.get("count") or 0)
        whole = told.get(pods.get("name"))
        if whole is None and "template" in pods:
            whole = times(requests_of(pods["template"]["spec"]), count)
        least = int(pods.get("minCount") or count)
        found.append({name: -(-amount * least // max(1, count)) for name, amount in (whole or {}).items()})
    return total(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Admission of one job to a ClusterQueue, as Kueue decides it by quota."""

    cluster: Object
    clusters: Sequence[Object]
    """All readable ClusterQueues, ``cluster`` included."""
    wanted: Amounts
    """Smallest request of the job with which it can start."""
    ahead: Sequence[Amounts] = ()
    """Requests of the jobs that precede it in the queue."""
    own: Sequence[QuotaHolder] = ()
    """Quota that the job itself holds, and that its admission releases."""

    def forecast(self, holders: Sequence[QuotaHolder]) -> Forecast:
        """Return which of the jobs that hold quota have to end.

        Jobs end in the order of :attr:`QuotaHolder.end_order`. A job whose end is not needed is left out.
        """
        ordered = sorted(holders, key=lambda holder: holder.end_order)
        has_quotas = bool(groups_of(self.cluster))
        must_end, is_after_ahead = self._jobs_to_end(ordered) if has_quotas else None, False
        if must_end is None and self.ahead and has_quotas:
            must_end = replace(self, ahead=())._jobs_to_end(ordered)  # noqa: SLF001 - its own class
            is_after_ahead = must_end is not None
        name = str(self.cluster["metadata"]["name"])
        shares = shares_of(self.cluster, self.clusters)
        return Forecast(
            cluster_queue=name,
            quotas=tuple((share, self.wanted[share.resource]) for share in shares if self.wanted.get(share.resource)),
            holders=tuple(ordered),
            must_end=None if must_end is None else tuple(must_end),
            shrink_to={} if is_after_ahead else dict(self._sizes_to_shrink_to(must_end or ())),
            is_after_ahead=is_after_ahead,
            unseen=dict(_unseen(shares, [each for each in (*self.own, *holders) if each.cluster_queue == name])),
        )

    def fits_now(self) -> bool:
        """Return whether Kueue admits the job now."""
        return self._fits(())

    def _jobs_to_end(self, ordered: Sequence[QuotaHolder]) -> list[QuotaHolder] | None:
        gone: list[QuotaHolder] = []
        waiting = iter(ordered)
        while not self._fits(gone):
            if (holder := next(waiting, None)) is None:
                return None
            gone.append(holder)
        for holder in reversed(gone[:-1]):
            rest = [each for each in gone if each is not holder]
            if self._fits(rest):
                gone = rest
        return gone

    def _sizes_to_shrink_to(self, must_end: Sequence[QuotaHolder]) -> Iterator[tuple[str, int]]:
        """Yield uid and largest size of each job that can shrink instead of ending, while the others end."""
        for holder in must_end:
            if (least := holder.progress.least) is None:
                continue
            for size in range(holder.pods - 1, least - 1, -1):
                left = {which: amount * size // holder.pods for which, amount in holder.usage.items()}
                freed = {which: amount - left[which] for which, amount in holder.usage.items()}
                if self._fits([*(each for each in must_end if each is not holder), replace(holder, usage=freed)]):
                    yield holder.uid, size
                    break

    def _fits(self, gone: Sequence[QuotaHolder]) -> bool:
        """Return whether Kueue admits the job once these have released their quota."""
        usage = _usage_without(usage_of(self.clusters), [*self.own, *gone])
        room = {(share.flavor, share.resource): share.free for share in shares_of(self.cluster, self.clusters, usage)}
        is_strict = (self.cluster.get("spec") or {}).get("queueingStrategy") == STRICT
        for other in self.ahead:
            taken = choose_flavors(self.cluster, other, room)
            if taken is None and is_strict:
                return False
            room = {which: amount - (taken or {}).get(which, 0) for which, amount in room.items()}
        return choose_flavors(self.cluster, self.wanted, room) is not None


def _usage_without(usage: Usage, gone: Sequence[QuotaHolder]) -> Usage:
    left = {name: dict(amounts) for name, amounts in usage.items()}
    for holder in gone:
        of_queue = left.get(holder.cluster_queue, {})
        for which, amount in holder.usage.items():
            of_queue[which] = max(0, of_queue.get(which, 0) - amount)
    return left


def _unseen(shares: Sequence[Share], seen: Sequence[QuotaHolder]) -> Iterator[tuple[tuple[str, str], int]]:
    for share in shares:
        which = share.flavor, share.resource
        if (rest := share.used - sum(holder.usage.get(which, 0) for holder in seen)) > 0:
            yield which, rest


def forecast_to_dict(forecast: Forecast) -> dict[str, Any]:
    """Return the forecast as JSON. ``mustEnd`` is ``null`` if the readable jobs do not hold enough quota."""
    must_end = forecast.must_end
    return {
        "clusterQueue": forecast.cluster_queue,
        "quotas": [share_to_dict(share, wanted) for share, wanted in forecast.quotas],
        "holders": [_holder_to_dict(holder, None) for holder in forecast.holders],
        "mustEnd": None
        if must_end is None
        else [_holder_to_dict(holder, forecast.shrink_to.get(holder.uid)) for holder in must_end],
        "isAfterJobsAhead": forecast.is_after_ahead,
        "etaSeconds": forecast.eta_seconds,
    }


def _holder_to_dict(holder: QuotaHolder, shrink_to: int | None) -> dict[str, Any]:
    return {
        "name": holder.name,
        "namespace": holder.namespace,
        "kind": holder.kind,
        "clusterQueue": holder.cluster_queue,
        "pods": holder.pods,
        "priority": holder.priority,
        "etaSeconds": holder.progress.eta_seconds,
        "shrinkTo": shrink_to,
    }
