"""Checks if Kueue takes a job, and how many jobs wait in its queue. Whether quota is free is for Kueue to decide."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kubectl_ddp.engines import ENGINES
from kubectl_ddp.kube.kueue_queue import inactive_reason
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.model import PreflightFacts, Subject, read
from kubectl_ddp.spec.rules import is_kueue_managed
from kubectl_ddp.util.finding import Finding, error, ok, warning


def check_local_queue(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that the LocalQueue exists and is active, which Kueue reports only if its ClusterQueue is."""
    local = _local_queue(subject, facts)
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
        yield error(
            f"The queue '{subject.spec.queue}' takes no jobs: {why}.",
            f"'kubectl describe clusterqueue {local['spec']['clusterQueue']}' shows the reason.",
        )
    else:
        leads = local["spec"]["clusterQueue"]
        yield ok(f"The queue '{subject.spec.queue}' takes jobs, and leads to '{leads}'.")


def _other_queues(names: Sequence[str], *, has_kueue: bool) -> str:
    if names:
        return f"There is {', '.join(names)}."
    way = "Request one from the administrator of Kueue" if has_kueue else "The cluster has no Kueue; install it"
    return f"{way}, or leave --queue out."


def check_priority_class(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that the WorkloadPriorityClass exists. Without it, Kueue ignores the job."""
    name = subject.spec.queue_priority
    if read(facts.queue_priority) is None:
        yield error(
            f"There is no WorkloadPriorityClass '{name}', and Kueue does not queue a job without its class.",
            "'kubectl get workloadpriorityclasses' names them; --priority names that of the pods.",
        )
    else:
        yield ok(f"The WorkloadPriorityClass '{name}' is there.")


def check_engine_integration(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
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


def check_pending_jobs(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Report the number of jobs that wait in the same queue, and the next one."""
    if _local_queue(subject, facts) is None:
        return
    owner_name = {"name": subject.spec.name}
    waiting = [
        workload for workload in read(facts.pending) if owner_name not in _owner_names(workload, subject.namespace)
    ]
    if not waiting:
        yield ok("No job waits in front of this one.")
        return
    first = waiting[0]["metadata"]
    owner = next((reference["name"] for reference in first.get("ownerReferences") or ()), first["name"])
    count = f"{len(waiting)} jobs wait" if len(waiting) > 1 else "1 job waits"
    yield warning(f"{count} in the same queue; the next is {first.get('namespace', '')}/{owner}.")


def _owner_names(workload: Object, namespace: str) -> list[dict[str, str]]:
    metadata = workload["metadata"]
    owners = metadata.get("ownerReferences") or () if metadata.get("namespace") == namespace else ()
    return [{"name": owner["name"]} for owner in owners]


def _local_queue(subject: Subject, facts: PreflightFacts) -> Object | None:
    """Return the LocalQueue of the job; ``None`` if the job uses no queue or the queue does not exist."""
    if not is_kueue_managed(subject.spec):
        return None
    named = [queue for queue in read(facts.local_queues) if queue["metadata"]["name"] == subject.spec.queue]
    return named[0] if named else None
