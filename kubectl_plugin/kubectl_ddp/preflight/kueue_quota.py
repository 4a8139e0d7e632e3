"""Quota of Kueue's ClusterQueues: nominal, used, free, borrowable, and the most that a queue can ever admit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.quantities import Amounts, format_quantity, milli_values, number

FlavorAmounts = Mapping[tuple[str, str], int]
"""(flavor, resource) → amount in thousandths of the resource's unit."""
Usage = Mapping[str, FlavorAmounts]
"""Name of a ClusterQueue → quota that its admitted jobs reserve."""


@dataclass(frozen=True, slots=True)
class Share:
    """Quota of a ClusterQueue for one resource of one flavor, in thousandths of the resource's unit."""

    flavor: str
    resource: str
    quota: int
    used: int
    """Use of the nominal quota and of borrowed quota."""
    lent: int
    """Quota that the cohort lends to this queue, within its limits; negative if it uses quota of this queue."""
    borrowing_limit: int | None = None
    """Maximum above the nominal quota; ``None`` if only the cohort limits it."""
    cohort: str = ""

    @property
    def free(self) -> int:
        """Amount that a new job can use now."""
        return max(0, self.quota - self.used + self.lent)

    @property
    def unused(self) -> int:
        """Nominal quota that neither this queue nor its cohort uses."""
        return max(0, self.quota - self.used + min(0, self.lent))

    @property
    def borrowable(self) -> int:
        """Amount above the nominal quota that a new job can use now."""
        return self.free - self.unused

    @property
    def ceiling(self) -> int | None:
        """Amount that the queue can use if no other job holds quota; ``None`` if only the cohort limits it."""
        if not self.cohort:
            return self.quota
        return None if self.borrowing_limit is None else self.quota + self.borrowing_limit


def shares_of(cluster: Object, clusters: Sequence[Object], usage: Usage | None = None) -> list[Share]:
    """Return the quotas of a ClusterQueue.

    Quotas of Cohort objects are not counted.

    Args:
        cluster: The ClusterQueue.
        clusters: All ClusterQueues, this one included, for the quota that the cohort can lend.
        usage: Quota that jobs reserve (default: that of the ClusterQueues' status).
    """
    reserved = usage_of(clusters) if usage is None else usage
    used = reserved[_name(cluster)]
    cohort = cohort_of(cluster)
    found = []
    for flavor, resource in _flavor_resources(cluster):
        quota, name = milli_values(resource), str(resource["name"])
        mine, limit = used.get((flavor, name), 0), quota.get("borrowingLimit")
        lent = _lendable_quota(cluster, clusters, reserved, (flavor, name))
        lent = lent if limit is None else min(lent, limit)
        found.append(Share(flavor, name, quota["nominalQuota"], mine, lent, limit, cohort))
    return found


def usage_of(clusters: Sequence[Object]) -> dict[str, dict[tuple[str, str], int]]:
    """Return the quota that admitted jobs reserve, by the status of the ClusterQueues."""
    return {_name(cluster): _reserved(cluster) for cluster in clusters}


def _reserved(cluster: Object) -> dict[tuple[str, str], int]:
    status = cluster.get("status") or {}
    return {
        (str(flavor["name"]), str(each["name"])): milli_values({"total": each.get("total", "0")})["total"]
        for flavor in status.get("flavorsReservation") or ()
        for each in flavor.get("resources") or ()
    }


def _lendable_quota(cluster: Object, clusters: Sequence[Object], usage: Usage, which: tuple[str, str]) -> int:
    """Return the unused quota of the other queues in the cohort, less the quota that they have borrowed.

    It is negative if they have borrowed from this queue.
    """
    found = 0
    for other in cohort_members(cluster, clusters):
        for flavor, resource in _flavor_resources(other):
            if other is not cluster and (flavor, resource["name"]) == which:
                quota = milli_values(resource)
                spare = quota["nominalQuota"] - usage[_name(other)].get(which, 0)
                found += min(spare, quota.get("lendingLimit", spare))
    return found


def cohort_members(cluster: Object, clusters: Sequence[Object]) -> list[Object]:
    """Return a ClusterQueue, and those that share quota with it."""
    cohort = cohort_of(cluster)
    others = [each for each in clusters if each is not cluster and cohort and cohort_of(each) == cohort]
    return [cluster, *others]


def _flavor_resources(cluster: Object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for group in groups_of(cluster):
        for flavor in group["flavors"]:
            for resource in flavor["resources"]:
                yield str(flavor["name"]), {name: value for name, value in resource.items() if value is not None}


def choose_flavors(cluster: Object, wanted: Amounts, room: FlavorAmounts) -> dict[tuple[str, str], int] | None:
    """Return the quota that a job would use, with one flavor per resource group; ``None`` if no flavor has room.

    Resources without any quota are left out.

    Args:
        cluster: ClusterQueue with the resource groups.
        wanted: Requests of the whole job.
        room: Free quota.
    """
    found: dict[tuple[str, str], int] = {}
    for group in groups_of(cluster):
        names = [name for name in group["coveredResources"] if wanted.get(name)]
        flavors = (str(flavor["name"]) for flavor in group["flavors"])
        fits = (each for each in flavors if all(room.get((each, name), 0) >= wanted[name] for name in names))
        if (flavor := next(fits, None)) is None:
            return None
        found |= {(flavor, name): wanted[name] for name in names}
    return found


def largest_count(cluster: Object, clusters: Sequence[Object], one: Amounts) -> int | None:
    """Return the most such pods that a ClusterQueue can ever admit; ``None`` if only its cohort limits it."""
    ceilings = {(share.flavor, share.resource): share.ceiling for share in shares_of(cluster, clusters)}
    found: list[int] = []
    for group in groups_of(cluster):
        names = [name for name in group["coveredResources"] if one.get(name)]
        of_flavors: list[int | None] = []
        for flavor in group["flavors"]:
            most = [(ceilings.get((str(flavor["name"]), name), 0), one[name]) for name in names]
            of_flavors.append(min((top // each for top, each in most if top is not None), default=None))
        if None not in of_flavors:
            found.append(max(filter(None, of_flavors), default=0))
    return min(found, default=None)


def describe_share(share: Share, wanted: int | None = None) -> str:
    """Describe a quota with its values, as in ``flavor 'h100': 4 nvidia.com/gpu, 4 used, 0 free, 2 requested``."""
    name = share.resource
    told = [f"flavor '{share.flavor}': {format_quantity(name, share.quota)}", f"{number(name, share.used)} used"]
    if share.cohort:
        limit = "" if share.borrowing_limit is None else f", limit {number(name, share.borrowing_limit)}"
        told.append(f"{number(name, share.borrowable)} to borrow from cohort '{share.cohort}'{limit}")
        told += [f"{number(name, -share.lent)} lent to it"] if share.lent < 0 else []
    told.append(f"{number(name, share.free)} free")
    return ", ".join(told + ([f"{number(name, wanted)} requested"] if wanted is not None else []))


def share_to_dict(share: Share, wanted: int | None = None) -> dict[str, Any]:
    """Return the JSON of a quota, in the resource's unit."""
    limit = share.borrowing_limit
    return {
        "flavor": share.flavor,
        "resource": share.resource,
        "nominal": share.quota / 1000,
        "used": share.used / 1000,
        "cohort": share.cohort,
        "borrowingLimit": None if limit is None else limit / 1000,
        "borrowable": share.borrowable / 1000,
        "free": share.free / 1000,
        "requested": None if wanted is None else wanted / 1000,
    }


def groups_of(cluster: Object) -> Sequence[Mapping[str, Any]]:
    """Return the resource groups of a ClusterQueue, each with flavors and their quotas."""
    return (cluster.get("spec") or {}).get("resourceGroups") or ()


def cohort_of(cluster: Object) -> str:
    """Return the name of the cohort. Its field is ``cohortName`` in v1beta2 and ``cohort`` before."""
    spec = cluster.get("spec") or {}
    return str(spec.get("cohortName") or spec.get("cohort") or "")


def _name(cluster: Object) -> str:
    return str(cluster["metadata"]["name"])
