"""List of all checks, and their execution."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from kubectl_ddp.util.finding import Severity
from kubectl_ddp.why import admission, containers, failing, lifecycle, queue, removal, scheduling, training
from kubectl_ddp.why.facts import Facts
from kubectl_ddp.why.model import LAST_RESORTS, CauseFinding

Check = Callable[[Facts], Iterator[CauseFinding]]

CHECKS: Final[tuple[Check, ...]] = (
    lifecycle.pending_deletion,
    lifecycle.finished,
    lifecycle.engine_lost,
    lifecycle.deadline,
    failing.node_lost,
    queue.kueue_preemption,
    failing.pod_preemption,
    removal.pod_eviction,
    removal.deleted,
    admission.operator,
    queue.queued,
    admission.job_suspension,
    admission.rejected_pods,
    failing.host_oom,
    failing.gpu_oom,
    failing.gpu_fault,
    failing.first_error,
    failing.early_failures,
    containers.sidecar,
    training.hang,
    training.store,
    removal.store_killed,
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
