"""Checks of the controllers that a job depends on: Kueue, and the optional controller of this project.

Whether quota is free is for Kueue to decide; the check reports if Kueue takes the job, and how many wait in its queue.

The project's controller moves pods before their node goes and resizes elastic jobs by quota. It reviews its own rights
and ends with a sentence if one is missing. The check reads that sentence from the status of its pods, so it needs no
right to review the access of others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ddp_trainer.common.safe_text import clean_text
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import Forbidden
from kubectl_ddp.kube.kueue_queue import inactive_reason
from kubectl_ddp.kube.objects import Object, holds
from kubectl_ddp.preflight.model import PreflightFacts, Subject, read
from kubectl_ddp.spec.rules import is_kueue_managed
from kubectl_ddp.util.finding import Finding, error, ok, warning
from kubectl_ddp.util.text_table import pluralize
from kubectl_ddp.values.program import QueueResize

CONTROLLER_SELECTOR: Final = "app.kubernetes.io/name=ddp-platform,app.kubernetes.io/component=controller"
"""Labels of the controller's pods, as the chart ddp-platform sets them."""
_ONLY: Final = "--only-namespace="
_ERROR: Final = "error: "


def check_controller(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that an installed controller works, and that one is installed for a job that needs it to grow."""
    pods = controller_pods(read(facts.controller), subject.namespace)
    grows = subject.spec.queue_resize is QueueResize.RUNNING
    limits = ["its pods do not move before their node goes"]
    limits += ["its number of nodes does not follow the quota"] if grows else []
    if trouble := controller_problem(pods):
        yield warning(f"{trouble} Until this is fixed, {' and '.join(limits)}.", fix_of(pods))
    elif pods:
        yield ok("The controller is ready.")
    elif grows:
        yield warning(
            f"No controller manages namespace '{subject.namespace}': the job starts with "
            f"{pluralize(subject.spec.nnodes.minimum, 'node')}, and only 'kubectl ddp scale' changes that.",
            "Install it with the chart ddp-platform, or use --queue-resize start.",
        )


def controller_pods(pods: Sequence[Object], namespace: str) -> list[Object]:
    """Return the pods of controllers that manage the jobs of a namespace."""
    return [pod for pod in pods if not (only := _namespaces(pod)) or namespace in only]


def controller_problem(pods: Sequence[Object]) -> str:
    """Return a sentence about why the controller does not work; empty if it does, or if it has no pods.

    All its pods have the same rights, so one that lacks some counts, even if others have not noticed yet.
    """
    unready = [pod for pod in pods if not holds(pod, "Ready")]
    lacking = next(filter(None, map(_permission_error, unready)), "")
    return lacking or ("The controller is not ready." if pods and len(unready) == len(pods) else "")


def fix_of(pods: Sequence[Object]) -> str:
    """Return the fix of the trouble."""
    metadata = pods[0]["metadata"]
    if any(map(_permission_error, pods)):
        return "Ask a cluster administrator to grant this to its service account, as the chart ddp-platform does."
    return f"'kubectl describe pod {metadata['name']} -n {metadata['namespace']}' shows the reason."


def _namespaces(pod: Object) -> set[str]:
    words = [str(word) for container in pod["spec"].get("containers") or () for word in container.get("args") or ()]
    return {word.removeprefix(_ONLY) for word in words if word.startswith(_ONLY)}


def _permission_error(pod: Object) -> str:
    """Return the sentence with which the controller has ended because a right is missing; empty if it has not."""
    for status in (pod.get("status") or {}).get("containerStatuses") or ():
        for state in (status.get("state") or {}, status.get("lastState") or {}):
            ending = state.get("terminated") or {}
            if ending.get("exitCode") == Forbidden.exit_code:
                lines = [line for line in str(ending.get("message", "")).splitlines() if line.startswith(_ERROR)]
                message = (
                    clean_text(lines[-1].removeprefix(_ERROR)) if lines else "A right of the controller is missing."
                )
                return message.partition(". ")[0].rstrip(".") + "."
    return ""


def check_local_queue(subject: Subject, facts: PreflightFacts) -> Iterator[Finding]:
    """Check that the LocalQueue exists and is active, which Kueue reports only if its ClusterQueue is."""
    local = _local_queue(subject, facts)
    if local is None:
        if is_kueue_managed(subject.spec):
            names = sorted(str(queue["metadata"]["name"]) for queue in read(facts.local_queues))
            yield error(
                f"LocalQueue '{subject.spec.queue}' does not exist in namespace '{subject.namespace}', so the job "
                "would wait for it.",
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
            f"WorkloadPriorityClass '{name}' does not exist, so Kueue would not queue the job.",
            "'kubectl get workloadpriorityclasses' lists them; --priority names the PriorityClass of the pods.",
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
