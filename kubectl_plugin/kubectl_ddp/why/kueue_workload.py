"""Kueue's Workload of a job, the jobs ahead of it, and the forecast of its admission."""

from __future__ import annotations

from collections.abc import Sequence

from kubectl_ddp.kube.conditions import holds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE, in_line, is_waiting, owner_of
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.kube.related_objects import RelatedKind
from kubectl_ddp.preflight.kueue_forecast import Admission, QuotaHolder, quota_holders, requested_amounts
from kubectl_ddp.why.facts import Facts, has_label


def workload_of(facts: Facts) -> Object | None:
    """Return the job's Workload, or None. Of several slices, a waiting one precedes the admitted one."""
    uid = facts.job["metadata"].get("uid")
    mine = [each for each in facts.around.of(RelatedKind.WORKLOADS) if owner_of(each) == uid]
    return min(mine, key=lambda each: (holds(each, "Finished"), not is_waiting(each)), default=None)


def workloads_ahead(facts: Facts, mine: Object, cluster_queue: str) -> list[Object]:
    """Return the workloads that wait for the same quota and precede this one."""
    line = in_line(_in_queue(facts, cluster_queue))
    return next((line[:place] for place, each in enumerate(line) if each is mine), [])


def _in_queue(facts: Facts, cluster_queue: str) -> list[Object]:
    queues = {
        (namespace_of(each), each["metadata"]["name"])
        for each in facts.around.of(RelatedKind.LOCAL_QUEUES)
        if each["spec"].get("clusterQueue") == cluster_queue
    }
    return [
        each
        for each in facts.around.of(RelatedKind.WORKLOADS)
        if (namespace_of(each), each["spec"].get("queueName")) in queues
    ]


def cluster_queue_of(facts: Facts, mine: Object) -> str:
    """Return the name of the ClusterQueue to which the queue of a job's Workload leads; empty if unknown."""
    local = local_queue_of(facts, mine)
    return str(local["spec"]["clusterQueue"]) if local else ""


def local_queue_of(facts: Facts, mine: Object) -> Object | None:
    """Return the LocalQueue of a job, in the namespace of its Workload, or None."""
    mine_too = [each for each in facts.around.of(RelatedKind.LOCAL_QUEUES) if namespace_of(each) == namespace_of(mine)]
    return named(mine_too, has_label(facts.job, KUEUE_QUEUE))


def admission_of(facts: Facts) -> tuple[Admission, list[QuotaHolder]] | None:
    """Return the admission that a job waits for and the jobs that hold the quota; None if it does not wait.

    A ClusterQueue that could not be read has no quotas.
    """
    mine = workload_of(facts)
    if facts.is_over or mine is None or not is_waiting(mine) or not (name := cluster_queue_of(facts, mine)):
        return None
    clusters = facts.around.of(RelatedKind.CLUSTER_QUEUES)
    cluster = named(clusters, name) or {"metadata": {"name": name}}
    holders = quota_holders(facts.around.of(RelatedKind.WORKLOADS), cluster, clusters)
    uid = owner_of(mine)
    waits_for = Admission(
        cluster=cluster,
        clusters=clusters if cluster in clusters else (*clusters, cluster),
        wanted=requested_amounts(mine),
        ahead=[requested_amounts(each) for each in workloads_ahead(facts, mine, name)],
        own=[each for each in holders if each.uid == uid],
    )
    return waits_for, [each for each in holders if each.uid != uid]


def namespace_of(item: Object) -> str:
    """Return the namespace; queues of the same name in other namespaces are different queues."""
    return str(item["metadata"]["namespace"])


def named(items: Sequence[Object], name: str) -> Object | None:
    """Return the object of this name, or None."""
    return next((each for each in items if each["metadata"]["name"] == name), None)
