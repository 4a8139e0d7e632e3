"""The checks, in the order in which they are shown: each a small function from all facts to findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

from ddp_trainer.preflight.checks import (
    checks_gpus,
    checks_names,
    checks_network,
    checks_node,
    checks_rdma,
    checks_software,
)
from ddp_trainer.preflight.facts import Facts
from ddp_trainer.preflight.finding import Finding, Status


@dataclass(frozen=True, slots=True)
class Check:
    """One row of the table."""

    name: str
    find: Callable[[Facts], Iterable[Finding]]
    takes_two: bool = True
    """It compares nodes, so that one alone says nothing."""


CHECKS: Final = (
    Check("meeting", checks_names.meeting, takes_two=False),
    Check("ranks", checks_names.ranks),
    Check("endpoint-name", checks_names.endpoint, takes_two=False),
    Check("reverse-name", checks_names.reverse, takes_two=False),
    Check("address-family", checks_network.families),
    Check("interface", checks_network.interface, takes_two=False),
    Check("mtu", checks_network.mtu),
    Check("rendezvous-port", checks_network.rendezvous_port),
    Check("random-port", checks_network.random_port),
    Check("clock", checks_software.clock),
    Check("versions", checks_software.versions),
    Check("script", checks_software.script),
    Check("environment", checks_software.environment),
    Check("gpus", checks_gpus.gpus, takes_two=False),
    Check("gpu-health", checks_gpus.health, takes_two=False),
    Check("gpu-links", checks_gpus.links, takes_two=False),
    Check("gpu-use", checks_gpus.use, takes_two=False),
    Check("rdma", checks_rdma.rdma, takes_two=False),
    Check("shared-memory", checks_node.shared_memory, takes_two=False),
    Check("open-files", checks_node.open_files, takes_two=False),
)


def judge(facts: Facts) -> tuple[Finding, ...]:
    """Everything that is not as it should be. A pure function: every node comes to the same result.

    Of a node that wants to join others, only what was not there without it: they train with what they have.
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
        return [Finding(check=check.name, status=Status.SKIP, node="", message="takes more than one node")]
    return found
