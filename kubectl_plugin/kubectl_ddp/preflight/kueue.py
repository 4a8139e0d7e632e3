"""Checks if Kueue can admit a job, and which jobs are ahead of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubectl_ddp.engines.registry import ENGINES
from kubectl_ddp.kube.conditions import condition_of
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.gang import first_pod_count, size_text
from kubectl_ddp.preflight.model import Facts, Subject, read
from kubectl_ddp.preflight.quantities import format_quantity, milli_values, requests_of, times
from kubectl_ddp.spec.queues import is_kueue_managed
from kubectl_ddp.util.finding import Finding, error, ok, warning


def check_local_queue(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that the LocalQueue exists, and that it and its ClusterQueue are active."""
    local = local_queue(subject, facts)
    if local is None:
        if is_kueue_managed(subject.spec):
            names = sorted(str(queue["metadata"]["name"]) for queue in read(facts.local_queues))
            yield error(
                f"There is no LocalQueue '{subject.spec.queue}' in namespace '{subject.namespace}', and a job whose "
                "queue is not there waits for ever.",
                _other_queues(names, has_kueue=facts.has_kueue),
            )
        return
    why = inactive_reason(local)
    if why:
        yield error(f"The queue '{subject.spec.queue}' takes no jobs: {why}.")
    else:
        leads = local["spec"]["clusterQueue"]
        yield ok(f"The queue '{subject.spec.queue}' takes jobs, and leads to '{leads}'.")


def _other_queues(names: Sequence[str], *, has_kueue: bool) -> str:
    if names:
        return f"There is {', '.join(names)}."
    way = "Request one from the administrator of Kueue" if has_kueue else "The cluster has no Kueue; install it"
    return f"{way}, or leave --queue out."


def check_priority_class(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that the WorkloadPriorityClass exists. Without it, Kueue ignores the job."""
    name = subject.spec.queue_priority
    if read(facts.queue_priority) is None:
        yield error(
            f"There is no WorkloadPriorityClass '{name}', and Kueue does not queue a job without its class.",
            "'kubectl get workloadpriorityclasses' names them; --priority names that of the pods.",
        )
    else:
        yield ok(f"The WorkloadPriorityClass '{name}' is there.")


def check_engine_integration(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that Kueue manages this kind of job. A job of another kind stays suspended in the queue."""
    if not is_kueue_managed(subject.spec):
        return
    engine = ENGINES[subject.spec.engine]
    word = f"{engine.group}/{engine.kind.lower()}"
    if word not in read(facts.frameworks):
        yield error(
            f"Kueue does not manage {engine.collection} here, so this job would stay suspended.",
            f"Choose another --engine ({_engine_names(read(facts.frameworks))}), or add '{word}' to Kueue's "
            "integrations.frameworks.",
        )


def _engine_names(frameworks: frozenset[str]) -> str:
    found = [name for name, engine in ENGINES.items() if f"{engine.group}/{engine.kind.lower()}" in frameworks]
    return ", ".join(found) or "there is none that it does"


def check_queue_quota(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that one flavor of each resource group has quota for all nodes.

    In a cohort, missing quota is only a warning, because the queue may borrow it.
    """
    local = local_queue(subject, facts)
    cluster = _cluster_queue(local, read(facts.cluster_queues)) if local else None
    if local is None or cluster is None:
        return
    name = cluster["metadata"]["name"]
    if why := inactive_reason(cluster):
        yield error(f"The ClusterQueue '{name}' takes no jobs: {why}.")
        return
    count = first_pod_count(subject)
    wanted = times(requests_of(subject.worker["spec"]), count)
    covered = {name for group in groups_of(cluster) for name in group["coveredResources"]}
    bare = sorted(name for name in wanted if name not in covered | {"pods"})
    if bare:
        yield error(
            f"The ClusterQueue '{name}' has no quota of {', '.join(bare)}, which the job requests.",
            "Request a quota, or omit the resource.",
        )
        return
    nodes_text = size_text(subject, count)
    short = [why for group in groups_of(cluster) if (why := _short(group, wanted))]
    if not short:
        yield ok(f"The ClusterQueue '{name}' has quota for {nodes_text}.")
    elif cohort_of(cluster):
        yield warning(
            f"The ClusterQueue '{name}' does not have enough nominal quota for {nodes_text}: {'; '.join(short)}. "
            f"It may borrow from its cohort '{cohort_of(cluster)}'."
        )
    else:
        yield error(
            f"The ClusterQueue '{name}' can never admit {nodes_text}: {'; '.join(short)}.",
            "Request fewer nodes, less per node, or a larger quota.",
        )


def _short(group: Mapping[str, Any], wanted: Mapping[str, int]) -> str:
    """Return the missing quota of each flavor in a group; empty if one flavor has enough."""
    lacks = []
    for flavor in group["flavors"]:
        quota = milli_values({each["name"]: each["nominalQuota"] for each in flavor["resources"]})
        missing = [
            f"the flavor '{flavor['name']}' has {format_quantity(name, quota.get(name, 0))} "
            f"of {format_quantity(name, wanted[name])}"
            for name in group["coveredResources"]
            if wanted.get(name, 0) > quota.get(name, 0)
        ]
        if not missing:
            return ""
        lacks.append(missing[0])
    return " and ".join(lacks)


def check_pending_jobs(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Report the number of jobs that wait in the same queue, and the next one."""
    if local_queue(subject, facts) is None:
        return
    mine = {"name": subject.spec.name}
    waiting = [each for each in read(facts.pending) if mine not in _owner_names(each, subject.namespace)]
    if not waiting:
        yield ok("No job waits in front of this one.")
        return
    first = waiting[0]["metadata"]
    owner = next((each["name"] for each in first.get("ownerReferences") or ()), first["name"])
    count = f"{len(waiting)} jobs wait" if len(waiting) > 1 else "1 job waits"
    yield warning(f"{count} in the same queue; the next is {first.get('namespace', '')}/{owner}.")


def _owner_names(workload: Object, namespace: str) -> list[dict[str, str]]:
    about = workload["metadata"]
    owners = about.get("ownerReferences") or () if about.get("namespace") == namespace else ()
    return [{"name": each["name"]} for each in owners]


def local_queue(subject: Subject, facts: Facts) -> Object | None:
    """Return the LocalQueue of the job; ``None`` if the job uses no queue or the queue does not exist."""
    if not is_kueue_managed(subject.spec):
        return None
    named = [queue for queue in read(facts.local_queues) if queue["metadata"]["name"] == subject.spec.queue]
    return named[0] if named else None


def _cluster_queue(local: Object, queues: Sequence[Object]) -> Object | None:
    named = [queue for queue in queues if queue["metadata"]["name"] == local["spec"]["clusterQueue"]]
    return named[0] if named else None


def inactive_reason(queue: Object) -> str:
    """Return the reason why a LocalQueue or a ClusterQueue accepts no jobs; empty if it is active."""
    active = condition_of(queue, "Active")
    if active.get("status") != "False":
        return ""
    return str(active.get("message") or active.get("reason") or "it is not active").rstrip(".")


def groups_of(cluster: Object) -> Sequence[Mapping[str, Any]]:
    """Return the resource groups of a ClusterQueue, each with flavors and their quotas."""
    return (cluster.get("spec") or {}).get("resourceGroups") or ()


def cohort_of(cluster: Object) -> str:
    """Return the name of the cohort. Its field is ``cohortName`` in v1beta2 and ``cohort`` before."""
    spec = cluster.get("spec") or {}
    return str(spec.get("cohortName") or spec.get("cohort") or "")
