"""Data types of the lint: rules, the facts that they read, and their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Self

Environment = Mapping[str, str]
"""Environment variables of a worker."""


class Severity(StrEnum):
    """Severity of a finding."""

    ERROR = "error"
    """The run will fail, hang or compute wrong results."""
    WARNING = "warning"
    """The run will be slow or fragile."""
    INFO = "info"
    """The setting has no effect, or deserves a check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts beside the variables; None for an unknown fact, about which no rule then reports anything."""

    interfaces: frozenset[str] | None = None
    """Network interfaces of the node."""
    route: str | None = None
    """Interface that routes to the other nodes."""
    rdma_devices: tuple[str, ...] | None = None
    """InfiniBand and RoCE devices of the node."""
    exists: Callable[[str], bool] | None = None
    """Returns whether a file exists on the node."""
    nodes: int | None = None
    """Largest number of nodes of the run."""
    nproc: int | None = None
    """Workers per node."""
    gpus: int | None = None
    """GPUs per node."""
    cpus: float | None = None
    """CPU cores per node."""
    is_one_machine: bool = False
    """True if all nodes share one network stack, as in a local job: its loopback reaches all of them."""


@dataclass(frozen=True, slots=True)
class Found:
    """Variable that a rule reports."""

    name: str
    value: str = ""
    detail: str = ""
    """Additional detail for the message and the fix of the rule."""


Condition = Callable[[Environment, Facts], Iterable[Found]]
"""Returns the variables that a rule reports."""

Premise = Callable[[Environment, Facts], bool]
"""Returns whether a rule applies."""


def where(is_reported: Callable[[str], bool], *names: str, given: Premise = lambda *_: True) -> Condition:
    """Return the condition of a rule that reports each of the named variables by its stripped value.

    Args:
        is_reported: Returns whether a value is reported.
        names: Names of the variables.
        given: Returns whether the rule applies, from the environment and the facts.
    """
    return lambda environment, facts: [
        Found(name, environment[name].strip())
        for name in names
        if name in environment and is_reported(environment[name].strip()) and given(environment, facts)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """Rule that inspects an environment. Without a condition, it is the decorator of its condition."""

    id: str
    """Id of the rule: N for NCCL, T for torch. An id is never reused for another rule."""
    severity: Severity = Severity.WARNING
    looks_for: str
    """Description in the table of the documentation."""
    message: str
    """Message that explains why the finding matters, with ``{name}``, ``{value}`` and ``{detail}`` of the finding."""
    fix: str = "Delete it."
    """Fix, with the same placeholders."""
    source: str
    """Source of the rule."""
    when: Condition = field(default=lambda *_: ())
    needs_node: bool = False
    """True if the rule needs facts that are known only on the node."""

    def finding(self, found: Found) -> Finding:
        """Return the finding for a reported variable."""
        return Finding(
            rule=self.id,
            severity=self.severity,
            name=found.name,
            message=self.message.format(name=found.name, value=found.value, detail=found.detail),
            fix=self.fix.format(name=found.name, value=found.value, detail=found.detail),
            source=self.source,
        )

    def __call__(self, when: Condition) -> Self:
        """Return this rule with a condition.

        >>> text = {"message": "{name}={value} is odd.", "fix": "Delete it.", "looks_for": "", "source": ""}
        >>> @Rule(id="N0", severity=Severity.INFO, **text)
        ... def odd(environment, facts):
        ...     return [Found("X", "1")]
        >>> print(*odd.check({}, Facts()))
        info N0: X=1 is odd. Delete it.
        """
        return replace(self, when=when)

    def check(self, environment: Environment, facts: Facts) -> list[Finding]:
        """Return the findings of this rule."""
        return [self.finding(found) for found in self.when(environment, facts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Finding of one rule."""

    rule: str
    severity: Severity
    name: str
    """Name of the variable."""
    message: str
    fix: str
    source: str

    def __str__(self) -> str:
        """Return the finding as one line."""
        return f"{self.severity} {self.rule}: {self.message} {self.fix}"
