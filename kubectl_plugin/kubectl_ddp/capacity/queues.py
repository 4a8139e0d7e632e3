"""Free quota of Kueue's queues."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from kubectl_ddp.capacity.model import Inventory, Queue, Share
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.kueue import cohort_of, groups_of, inactive_reason
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.preflight.quantities import PODS, Amounts, milli_values

UNBOUNDED: Final = 10**9
"""Number of nodes that a queue without quotas admits."""


def queues_of(stock: Inventory) -> list[Queue] | None:
    """Return the queues of the namespace, sorted by name; ``None`` if they could not be read."""
    if isinstance(stock.local_queues, Unknown):
        return None
    clusters = None if isinstance(stock.cluster_queues, Unknown) else stock.cluster_queues
    return sorted((_queue(local, clusters) for local in stock.local_queues), key=lambda queue: queue.name)


def _queue(local: Object, clusters: Sequence[Object] | None) -> Queue:
    leads = str(local["spec"]["clusterQueue"])
    cluster = next((each for each in clusters or () if each["metadata"]["name"] == leads), None)
    status = (cluster or local).get("status") or {}
    return Queue(
        name=str(local["metadata"]["name"]),
        cluster_queue=leads,
        inactive=inactive_reason(local) or (inactive_reason(cluster) if cluster else ""),
        waiting=int(status.get("pendingWorkloads") or 0),
        shares=None if clusters is None else tuple(shares_of(cluster, clusters) if cluster else ()),
    )


def shares_of(cluster: Object, clusters: Sequence[Object]) -> Iterator[Share]:
    """Yield the quota of a ClusterQueue for each resource of each flavor.

    Args:
        cluster: ClusterQueue.
        clusters: All ClusterQueues, of which those of the same cohort lend quota.
    """
    used = _used(cluster)
    for flavor, resource in _flavor_resources(cluster):
        quota, name = milli_values(resource), str(resource["name"])
        mine = used.get((flavor, name), 0)
        lent = _borrowable_quota(cluster, clusters, flavor, name) - max(0, mine - quota["nominalQuota"])
        if "borrowingLimit" in quota:
            lent = min(lent, quota["borrowingLimit"] - max(0, mine - quota["nominalQuota"]))
        yield Share(flavor, name, quota["nominalQuota"], mine, max(0, lent))


def _borrowable_quota(cluster: Object, clusters: Sequence[Object], flavor: str, name: str) -> int:
    """Return the unused quota of the other queues in the cohort, less the quota that they have borrowed."""
    cohort = cohort_of(cluster)
    others = [each for each in clusters if cohort and each is not cluster and cohort_of(each) == cohort]
    found = 0
    for other in others:
        used = _used(other).get((flavor, name), 0)
        for its, resource in _flavor_resources(other):
            if (its, resource["name"]) == (flavor, name):
                quota = milli_values(resource)
                spare = quota["nominalQuota"] - used
                found += min(spare, quota.get("lendingLimit", spare))
    return found


def _flavor_resources(cluster: Object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for group in groups_of(cluster):
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                yield str(flavor["name"]), {name: value for name, value in resource.items() if value is not None}


def _used(cluster: Object) -> dict[tuple[str, str], int]:
    """Return (flavor, resource) → amount reserved by admitted jobs."""
    status = cluster.get("status") or {}
    return {
        (str(flavor["name"]), str(each["name"])): milli_values({"total": each.get("total", "0")})["total"]
        for flavor in status.get("flavorsReservation") or ()
        for each in flavor.get("resources") or ()
    }


def nodes_within_quota(queue: Queue, wants: Amounts) -> int:
    """Return the number of such pods for which a queue has quota now, with one flavor for each resource."""
    if queue.inactive:
        return 0
    if queue.shares is None:
        return UNBOUNDED
    found = [UNBOUNDED]
    for name, amount in wants.items():
        rooms = [share.free // amount for share in queue.shares if share.resource == name and amount]
        if rooms or (name != PODS and amount):
            found.append(max(rooms, default=0))
    return min(found)
