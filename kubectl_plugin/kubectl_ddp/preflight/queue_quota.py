"""Checks if the quota of a queue of Kueue is ever enough for a job, and if it is enough now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from kubectl_ddp.kube.kueue_queue import in_line
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.forecast_text import quota_lines, when_sentence
from kubectl_ddp.preflight.gang import first_pod_count, is_all_or_nothing, size_text, without_spares
from kubectl_ddp.preflight.kueue import inactive_reason, local_queue
from kubectl_ddp.preflight.kueue_forecast import Admission, QuotaHolder, quota_holders, requested_amounts
from kubectl_ddp.preflight.kueue_quota import (
    Share,
    cohort_of,
    describe_share,
    groups_of,
    largest_count,
    shares_of,
)
from kubectl_ddp.preflight.model import Facts, Subject, Unknown, read
from kubectl_ddp.preflight.quantities import Amounts, format_quantity, number, requests_of, times
from kubectl_ddp.util.finding import Finding, Severity, error, ok, warning


def check_queue_quota(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that one flavor of each resource group has quota for all nodes, with what the queue may borrow.

    Missing nominal quota is a warning if the queue may borrow it, and so is a maximum that the queue can never admit.
    """
    if (cluster := _cluster_queue(subject, facts)) is None:
        return
    name = cluster["metadata"]["name"]
    if why := inactive_reason(cluster):
        yield error(f"The ClusterQueue '{name}' takes no jobs: {why}.")
        return
    one = requests_of(subject.worker["spec"])
    covered = {name for group in groups_of(cluster) for name in group["coveredResources"]}
    if bare := sorted(name for name in one if name not in covered | {"pods"}):
        yield error(
            f"The ClusterQueue '{name}' has no quota of {', '.join(bare)}, which the job requests.",
            "Request a quota, or omit the resource.",
        )
        return
    yield _size_finding(subject, cluster, read(facts.cluster_queues), one)


def _size_finding(subject: Subject, cluster: Object, clusters: Sequence[Object], one: Amounts) -> Finding:
    name, nodes, count = cluster["metadata"]["name"], subject.spec.nnodes, first_pod_count(subject)
    largest = largest_count(cluster, clusters, one)
    shares = shares_of(cluster, clusters)
    most = subject.spec.largest_pod_count
    fits = f"{nodes.minimum}:{largest}" if largest and nodes.minimum < largest else str(largest)
    fits += without_spares(subject)
    if largest is not None and largest < count:
        fewer = f"Use --nnodes {fits}" if largest else "Request fewer nodes"
        short = _short(cluster, shares, times(one, count))
        return error(
            f"The ClusterQueue '{name}' can never admit {size_text(subject, count)}: {short}.",
            f"{fewer}, less per node, or a larger quota.",
        )
    if largest is not None and largest < most:
        short = _short(cluster, shares, times(one, most))
        return warning(
            f"The ClusterQueue '{name}' can never admit more than {largest} of {size_text(subject, most)}: {short}.",
            f"Use --nnodes {fits}, or request a larger quota.",
        )
    if short := _short(cluster, [replace(share, cohort="") for share in shares], times(one, count)):
        return warning(
            f"The ClusterQueue '{name}' does not have enough nominal quota for {size_text(subject, count)}: {short}. "
            f"It may borrow from its cohort '{cohort_of(cluster)}'."
        )
    return ok(f"The ClusterQueue '{name}' has quota for {size_text(subject, count)}.")


def _short(cluster: Object, shares: Sequence[Share], wanted: Amounts) -> str:
    """Return the missing quota of each flavor; empty if one flavor of each resource group can ever have enough."""
    found = {(share.flavor, share.resource): share for share in shares}
    return "; ".join(filter(None, (_short_in_group(group, found, wanted) for group in groups_of(cluster))))


def _short_in_group(group: Mapping[str, Any], shares: Mapping[tuple[str, str], Share], wanted: Amounts) -> str:
    lacks = []
    for flavor in group["flavors"]:
        of_flavor = {each: shares.get((flavor["name"], each)) for each in group["coveredResources"]}
        missing = [
            f"the flavor '{flavor['name']}' has {_ceiling(name, share)} of {format_quantity(name, wanted[name])}"
            for name, share in of_flavor.items()
            if wanted.get(name) and not _is_enough(share, wanted[name])
        ]
        if not missing:
            return ""
        lacks.append(missing[0])
    return " and ".join(lacks)


def _is_enough(share: Share | None, amount: int) -> bool:
    return share is not None and (share.ceiling is None or share.ceiling >= amount)


def _ceiling(name: str, share: Share | None) -> str:
    if share is None or share.ceiling is None or not share.borrowing_limit:
        return format_quantity(name, share.quota if share else 0)
    nominal, limit = number(name, share.quota), number(name, share.borrowing_limit)
    return f"{format_quantity(name, share.ceiling)} ({nominal} nominal and a borrowing limit of {limit})"


def check_free_quota(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that the queue has free quota now, and which jobs must end otherwise."""
    forecast, waits_for = facts.forecast, admission_of(subject, facts)
    if forecast is None or waits_for is None:
        return
    name, count = forecast.cluster_queue, first_pod_count(subject)
    nodes = size_text(subject, count)
    if forecast.is_enough:
        yield ok(f"The ClusterQueue '{name}' has free quota for {nodes} now.")
        return
    lacks = [describe_share(share, wanted) for share, wanted in forecast.quotas if share.free < wanted]
    why = f": {lacks[0]}" if lacks else ", as jobs wait ahead of it"
    one = requests_of(subject.worker["spec"])
    sizes = (size for size in range(count - 1, 0, -1) if replace(waits_for[0], wanted=times(one, size)).fits_now())
    size = next(sizes, 0)
    range_of = f"{size}:{subject.spec.nnodes.maximum}" if not is_all_or_nothing(subject) else str(size)
    range_of += without_spares(subject)
    yield warning(
        f"The ClusterQueue '{name}' does not have free quota for {nodes} now{why}. {when_sentence(forecast)}",
        f"It waits until then; --nnodes {range_of} would start now." if size else "It waits until then.",
        tuple(quota_lines(forecast)),
    )
    yield from (Finding(Severity.UNKNOWN, sentence) for sentence in facts.unread_progress)


def admission_of(subject: Subject, facts: Facts) -> tuple[Admission, list[QuotaHolder]] | None:
    """Return the admission of a job that is not submitted yet, and the jobs that hold the quota.

    Returns:
        None if the job uses no queue, its ClusterQueue or the Workloads could not be read, or the quota is never
        enough.
    """
    if any(isinstance(fact, Unknown) for fact in (facts.local_queues, facts.cluster_queues, facts.workloads)):
        return None
    clusters, workloads = read(facts.cluster_queues), read(facts.workloads)
    if (cluster := _cluster_queue(subject, facts)) is None or inactive_reason(cluster):
        return None
    one, count = requests_of(subject.worker["spec"]), first_pod_count(subject)
    largest = largest_count(cluster, clusters, one)
    if largest is not None and largest < count:
        return None
    holders = quota_holders(workloads, cluster, clusters)
    own = [each for each in holders if (each.namespace, each.name) == (subject.namespace, subject.spec.name)]
    ahead = [requested_amounts(each) for each in _ahead(subject, facts, cluster, workloads)]
    admission = Admission(cluster=cluster, clusters=clusters, wanted=times(one, count), ahead=ahead, own=own)
    return admission, [each for each in holders if each not in own]


def _ahead(subject: Subject, facts: Facts, cluster: Object, workloads: Sequence[Object]) -> list[Object]:
    """Return the waiting jobs of the namespace that precede a new one: their priority is not lower."""
    queues = {
        str(each["metadata"]["name"])
        for each in read(facts.local_queues)
        if each["spec"]["clusterQueue"] == cluster["metadata"]["name"]
    }
    value = next((each for each in (facts.queue_priority, facts.priority) if isinstance(each, dict)), {}).get("value")
    mine = {"name": subject.spec.name}
    return [
        each
        for each in in_line(workloads)
        if each["metadata"].get("namespace") == subject.namespace
        and each["spec"].get("queueName") in queues
        and int(each["spec"].get("priority") or 0) >= int(value or 0)
        and not any(mine["name"] == owner.get("name") for owner in each["metadata"].get("ownerReferences") or ())
    ]


def _cluster_queue(subject: Subject, facts: Facts) -> Object | None:
    if (local := local_queue(subject, facts)) is None:
        return None
    named = (each for each in read(facts.cluster_queues) if each["metadata"]["name"] == local["spec"]["clusterQueue"])
    return next(named, None)
