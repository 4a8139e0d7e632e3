"""Quota of Kueue's ClusterQueues that a job can use: the nominal quota, and what the cohort lends. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kubectl_ddp.kube.kueue_queue import flavor_quotas
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.resources import milli_values

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

    Quotas of Cohort objects are not counted.

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
