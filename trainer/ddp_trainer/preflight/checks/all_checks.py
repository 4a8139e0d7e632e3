"""Table of all checks in the order of the output.

Each is a function from all facts to findings; :func:`run_all_checks` runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ddp_trainer.preflight.checks import (
    gpu_checks,
    name_checks,
    network_checks,
    node_checks,
    rdma_checks,
    software_checks,
)
from ddp_trainer.preflight.result import Finding, Status, named
from ddp_trainer.preflight.schema import Facts, ProbeKind


@dataclass(frozen=True, slots=True)
class Check:
    """One check, a row of the table."""

    name: str
    find: Callable[[Facts], Iterable[Finding]]
    takes_two: bool = True
    """True if it compares nodes, so that one node alone gives no result."""


CHECKS: Final = (
    Check("meeting", name_checks.node_count, takes_two=False),
    Check("ranks", name_checks.ranks),
    Check("endpoint-name", name_checks.endpoint, takes_two=False),
    Check("reverse-name", name_checks.reverse, takes_two=False),
    Check("address-family", network_checks.families),
    Check("interface", network_checks.interface, takes_two=False),
    Check("mtu", network_checks.mtu),
    Check("rendezvous-port", network_checks.rendezvous_port),
    Check("random-port", partial(network_checks.ports, purpose=ProbeKind.RANDOM)),
    Check("clock", software_checks.clock),
    Check("versions", software_checks.versions),
    Check("script", software_checks.script),
    Check("environment", software_checks.environment),
    Check("gpus", gpu_checks.gpus, takes_two=False),
    Check("gpu-health", partial(gpu_checks.on_all_nodes, gpu_checks.health_of), takes_two=False),
    Check("gpu-links", partial(gpu_checks.on_all_nodes, gpu_checks.links_of), takes_two=False),
    Check("gpu-use", partial(gpu_checks.on_all_nodes, gpu_checks.use_of), takes_two=False),
    Check("rdma", rdma_checks.rdma, takes_two=False),
    Check("shared-memory", node_checks.shared_memory, takes_two=False),
    Check("open-files", node_checks.open_files, takes_two=False),
)


def run_all_checks(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings. The function is pure, so every node gets the same result.

    For a node that joins a running group, findings that exist without it are left out: the others already train with
    them.
    """
    found = tuple(finding for check in CHECKS for finding in _found(check, facts))
    others = tuple(report for report in facts.reports if report.node_rank != facts.newcomer)
    if facts.newcomer is None or not others:
        return found
    there = replace(facts, reports=others, expected=len(others), least=len(others))
    known = {finding for check in CHECKS for finding in _found(check, there)}
    return tuple(finding for finding in found if finding not in known)


def _found(check: Check, facts: Facts) -> list[Finding]:
    found = list(check.find(facts))
    if not found and check.takes_two and len(facts.reports) == 1:
        found = [Finding(Status.SKIP, "", "takes more than one node")]
    return named(check.name, found)
