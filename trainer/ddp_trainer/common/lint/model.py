"""Data types of the lint: the facts that rules read, and their findings. :func:`run_checks` applies rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ddp_trainer.common.lint.values import split_list

Environment = Mapping[str, str]
"""Environment variables of a worker."""


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """The run will fail, hang or compute wrong results."""
    WARNING = "warning"
    """The run will be slow or fragile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts beside the variables; None for an unknown fact, about which no rule then reports anything."""

    interfaces: frozenset[str] | None = None
    """Network interfaces of the node."""
    route: str | None = None
    """Interface that routes to the other nodes."""
    rdma_devices: tuple[str, ...] | None = None
    """InfiniBand and RoCE devices of the node."""
    nodes: int | None = None
    """Largest number of nodes of the run."""
    nproc: int | None = None
    """Workers per node."""
    cpus: float | None = None
    """CPU cores per node."""
    is_one_machine: bool = False
    """True if all nodes share one network stack, as in a local job: its loopback reaches all of them."""

    @property
    def has_other_machines(self) -> bool:
        """True if the run has, or may have, nodes on other machines."""
        return self.nodes != 1 and not self.is_one_machine


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of one rule."""

    rule: str
    """Id of the rule: N for NCCL, T for torch. An id is never reused for another rule."""
    name: str
    """Name of the variable."""
    message: str
    """The wrong value, and its consequence."""
    fix: str
    source: str
    severity: Severity = Severity.ERROR

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.severity} {self.rule}: {self.message} {self.fix}"


Check = Callable[[Environment, Facts], Iterator[Finding]]
"""Rules about related variables."""


def run_checks(checks: Iterable[Check], environment: Environment, facts: Facts, ignored: str = "") -> list[Finding]:
    """Return the findings for one environment, errors first.

    Args:
        checks: Rules to apply.
        environment: The variables of a worker.
        facts: Facts about the node and the run.
        ignored: Ids of rules to leave out, separated by commas, or ``all``.
    """
    left_out = {word.upper() for word in split_list(ignored)}
    if "ALL" in left_out:
        return []
    found = [finding for check in checks for finding in check(environment, facts) if finding.rule not in left_out]
    return sorted(found, key=lambda finding: (finding.severity is not Severity.ERROR, finding.rule))
