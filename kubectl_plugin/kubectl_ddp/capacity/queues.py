"""Free quota of Kueue's queues."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubectl_ddp.capacity.model import Inventory, Queue
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.kueue import inactive_reason
from kubectl_ddp.preflight.kueue_quota import shares_of
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.preflight.quantities import PODS, Amounts

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
