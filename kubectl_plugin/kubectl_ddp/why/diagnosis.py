"""Diagnosis of a job: facts are read, all checks run in their order, and findings are printed as text or JSON.

The job is read first, then in parallel everything that its state makes relevant.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.hang.collector import HangSnapshot, collect_hang_snapshot
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE
from kubectl_ddp.kube.objects import Object, RelatedKind, Snapshot, condition_of
from kubectl_ddp.observe.scrape import scrape
from kubectl_ddp.status.job_state import job_state
from kubectl_ddp.status.job_tables import API_VERSION, state_cell
from kubectl_ddp.status.termination_message import stores, workers
from kubectl_ddp.util.concurrency import Future, map_in_threads
from kubectl_ddp.util.finding import Severity, finding_to_dict, findings_text
from kubectl_ddp.util.text_table import Style, duration
from kubectl_ddp.why import containers, failing, lifecycle, scheduling, training
from kubectl_ddp.why.facts import Facts, is_training_stalled, label_of
from kubectl_ddp.why.model import LAST_RESORTS, CauseFinding

LINES: Final = 200
"""Number of last log lines to read per pod."""
MOST_LOGS: Final = 16
"""Maximum number of pods whose logs are read; a job of a thousand pods would take minutes."""


def gather(
    backend: Backend, name: str, *, also: frozenset[RelatedKind] = frozenset(), clock: Callable[[], float] = time.time
) -> Facts:
    """Read all facts that may explain the job's state.

    Args:
        backend: Place where the job runs.
        name: Name of the job.
        also: Kinds of objects to read in addition to those relevant for the job's state.
        clock: Source of Unix time.

    Raises:
        NotFound: If the job does not exist.
        DdpError: If the job itself cannot be read.
    """
    snapshot = backend.job(name, events=False)  # events are read together with the related objects
    kinds = related_kinds(snapshot) | also
    talking = _running_pods(snapshot)[:MOST_LOGS]
    with (
        Future(lambda: backend.related_objects(snapshot.job, kinds)) as around,
        Future(lambda: map_in_threads(partial(_lines, backend), talking)) as lines,
    ):
        samples = scrape(backend, snapshot)
        state, now = job_state(snapshot, samples, where=backend.where), clock()
        results = zip(talking, lines.result(), strict=True)
        return Facts(
            snapshot=snapshot,
            state=state,
            now=now,
            hang_snapshot=collect_hang_snapshot(backend, snapshot)
            if is_training_stalled(state, now)
            else HangSnapshot(),
            around=around.result(),
            samples=samples,
            lines={str(pod["metadata"]["name"]): log for pod, log in results if log is not None},
        )


def related_kinds(snapshot: Snapshot) -> frozenset[RelatedKind]:
    """Return the kinds of related objects that are relevant for the job's state."""
    return frozenset(kind for kind, is_wanted in _WANTED.items() if is_wanted(snapshot))


def _is_over(snapshot: Snapshot) -> bool:
    return bool({"Succeeded", "Failed"} & job_kinds.conditions(snapshot.job).keys())


def _has_missing_pods(snapshot: Snapshot) -> bool:
    return not _is_over(snapshot) and len(workers(snapshot.pods)) < job_kinds.desired_nodes(snapshot.job)


def _has_unscheduled_pods(snapshot: Snapshot) -> bool:
    return any(condition_of(pod, "PodScheduled").get("status") == "False" for pod in snapshot.pods)


def _is_queued(snapshot: Snapshot) -> bool:
    return bool(label_of(snapshot.job, KUEUE_QUEUE)) and not _is_over(snapshot)


_WANTED: Final[Mapping[RelatedKind, Callable[[Snapshot], bool]]] = {
    RelatedKind.EVENTS: lambda _: True,
    RelatedKind.NODES: lambda snapshot: bool(snapshot.pods),
    RelatedKind.CLAIMS: _has_unscheduled_pods,
    RelatedKind.OPERATOR: _has_missing_pods,
    RelatedKind.WORKLOADS: _is_queued,
    RelatedKind.LOCAL_QUEUES: _is_queued,
    RelatedKind.CLUSTER_QUEUES: _is_queued,
    RelatedKind.QUEUE_CONTROLLER: _is_queued,
}


def _running_pods(snapshot: Snapshot) -> list[Object]:
    """Return the running pods."""
    pods = [*workers(snapshot.pods), *stores(snapshot.pods)]
    return [pod for pod in pods if not _is_over(snapshot) and pod.get("status", {}).get("phase") == "Running"]


def _lines(backend: Backend, pod: Object) -> tuple[str, ...] | None:
    try:
        return tuple(backend.logs(pod, tail=LINES, timestamps=True))
    except DdpError:  # it is ending, or its node does not respond: use the other pods' logs
        return None


Check = Callable[[Facts], Iterator[CauseFinding]]

CHECKS: Final[tuple[Check, ...]] = (
    lifecycle.pending_deletion,
    lifecycle.finished,
    lifecycle.engine_lost,
    lifecycle.deadline,
    failing.node_lost,
    scheduling.kueue_preemption,
    failing.pod_preemption,
    failing.pod_eviction,
    failing.deleted,
    lifecycle.operator,
    scheduling.queued,
    lifecycle.job_suspension,
    lifecycle.rejected_pods,
    failing.host_oom,
    failing.gpu_oom,
    failing.gpu_fault,
    failing.first_error,
    failing.early_failures,
    containers.sidecar,
    training.hang,
    training.store,
    failing.store_killed,
    training.outside_group,
    training.rendezvous,
    training.nested_launcher,
    training.full_disk,
    training.unhealthy_node,
    training.present,
)
"""Each check examines only the facts and yields only certain findings; the order is not significant."""

OF_WAITING_PODS: Final[tuple[Check, ...]] = (
    scheduling.scheduling_failure,
    scheduling.gated,
    scheduling.claims,
    containers.volume,
    containers.image,
    containers.config,
    containers.init,
    containers.sandbox,
    containers.start,
)
"""Checks of pods that do not run. An elastic job that trains can do without such pods."""


def run_checks(facts: Facts) -> tuple[CauseFinding, ...]:
    """Run all checks and return the findings, the most explanatory first."""
    waiting = [finding for check in OF_WAITING_PODS for finding in check(facts)]
    if facts.is_training:
        waiting = [replace(finding, severity=Severity.INFO) for finding in waiting]
    found = [*waiting, *(finding for check in CHECKS for finding in check(facts))]
    if any(finding.severity is not Severity.INFO and finding.subject not in LAST_RESORTS for finding in found):
        found = [finding for finding in found if finding.subject not in LAST_RESORTS]
    return tuple(sorted(found, key=lambda finding: finding.order))


def diagnosis_text(facts: Facts, found: Sequence[CauseFinding], style: Style) -> str:
    """Return the findings as text: the first cause, then the others, then findings that do not block the job."""
    state = facts.state
    cell = state_cell(state.state)
    place = f"{state.where}, namespace {state.namespace}" if state.namespace else state.where
    age = duration(facts.age_seconds)
    header = f"Job {state.name} ({place}) is {style.apply_color(cell.text, cell.color)}, {age} old."
    return "\n\n".join(filter(None, (header, findings_text(found, style))))


def diagnosis_to_dict(facts: Facts, found: Sequence[CauseFinding]) -> dict[str, Any]:
    """Return the findings as a JSON object. Times are Unix times."""
    return {
        "apiVersion": API_VERSION,
        "kind": "Diagnosis",
        "job": facts.name,
        "namespace": facts.state.namespace,
        "where": facts.state.where,
        "state": str(facts.state.state),
        "cause": str(found[0].subject) if found else None,
        "exitCode": found[0].exit_code if found else 0,
        "findings": [finding_to_dict(finding) | {"exitCode": finding.exit_code} for finding in found],
        "notLookedAt": list(facts.around.unseen),
        "time": facts.now,
    }
