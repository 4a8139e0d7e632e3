"""The checks, and what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from kubectl_ddp.why import containers, ending, failing, holding, placing, queue, training
from kubectl_ddp.why.facts import Facts
from kubectl_ddp.why.model import Finding

Check = Callable[[Facts], Iterator[Finding]]

CHECKS: Final[tuple[Check, ...]] = (
    ending.deleting,
    ending.finished,
    ending.engine_lost,
    ending.deadline,
    failing.node_lost,
    queue.preempted_by_queue,
    failing.preempted,
    failing.evicted,
    holding.operator,
    queue.queued,
    holding.suspended,
    holding.refused_pods,
    placing.unschedulable,
    placing.gated,
    placing.claims,
    containers.volume,
    containers.image,
    containers.config,
    containers.init,
    containers.sandbox,
    containers.start,
    failing.host_oom,
    failing.gpu_oom,
    failing.first_error,
    training.hang,
    training.store,
    training.rendezvous,
    training.node_unwell,
    training.present,
)
"""Each looks at the facts and nothing else, and yields what it is sure of; the order here means nothing."""


def findings(facts: Facts) -> tuple[Finding, ...]:
    """What is the matter with a job, what explains the most first."""
    found = [finding for check in CHECKS for finding in check(facts)]
    return tuple(sorted(found, key=lambda finding: finding.order))
