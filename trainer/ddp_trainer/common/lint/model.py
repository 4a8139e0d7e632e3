"""Rules, what they look at, and what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

Environment = Mapping[str, str]
"""The variables that a worker will have."""


class Severity(StrEnum):
    """How bad it is."""

    ERROR = "error"
    """The run will fail, hang or compute nonsense."""
    WARNING = "warning"
    """Slow or fragile."""
    INFO = "info"
    """Without effect, or worth a thought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known beside the variables; None for what is not, and then no rule claims anything about it."""

    interfaces: frozenset[str] | None = None
    """Network interfaces of the node."""
    route: str | None = None
    """The interface on the way to the other nodes."""
    rdma_devices: tuple[str, ...] | None = None
    """InfiniBand and RoCE devices of the node."""
    exists: Callable[[str], bool] | None = None
    """Whether the node has a file."""
    nodes: int | None = None
    """The most nodes that the run may have."""
    nproc: int | None = None
    """Workers of each node."""
    gpus: int | None = None
    """GPUs of each node."""
    cpus: float | None = None
    """Cores of each node."""
    is_one_machine: bool = False
    """All nodes share one network stack, as those of a local job do: its loopback reaches every one of them."""


@dataclass(frozen=True, slots=True)
class Found:
    """A variable that a rule is about."""

    name: str
    value: str = ""
    detail: str = ""
    """What the rule's sentence and fix need besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubtful:
    """What a rule says, whatever it looks at."""

    id: str
    """N for NCCL, T for torch, K for the pods; never used again for something else."""
    severity: Severity
    looks_for: str
    """For the table of the documentation."""
    sentence: str
    """With ``{name}``, ``{value}`` and ``{detail}`` of what was found; says why it matters."""
    fix: str
    """What to do, with the same."""
    source: str
    """Where it is written."""

    def finding(self, found: Found) -> Finding:
        """What was found, in words."""
        return Finding(
            rule=self.id,
            severity=self.severity,
            name=found.name,
            sentence=self.sentence.format(name=found.name, value=found.value, detail=found.detail),
            fix=self.fix.format(name=found.name, value=found.value, detail=found.detail),
            source=self.source,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Doubtful):
    """One thing to look for in an environment."""

    when: Callable[[Environment, Facts], Iterable[Found]]
    needs_node: bool = False
    """Can only be told on the node itself."""

    def check(self, environment: Environment, facts: Facts) -> list[Finding]:
        """What this rule finds."""
        return [self.finding(found) for found in self.when(environment, facts)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing found."""

    rule: str
    severity: Severity
    name: str
    """The variable, or the field of a pod."""
    sentence: str
    fix: str
    source: str

    def __str__(self) -> str:
        """One line.

        >>> found = Found("X", "1")
        >>> rule = Rule(id="N0", severity=Severity.INFO, looks_for="", when=lambda *_: [found],
        ...             sentence="{name}={value} is odd.", fix="Delete it.", source="")
        >>> print(*rule.check({}, Facts()))
        info N0: X=1 is odd. Delete it.
        """
        return f"{self.severity} {self.rule}: {self.sentence} {self.fix}"
