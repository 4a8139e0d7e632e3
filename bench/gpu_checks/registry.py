"""The checks of ``bench gpu``, in the order in which they run: those that show most come first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: a module of this package with a function ``run(bench: Bench) -> None``."""

    letter: str
    module: str
    title: str
    """Noun phrase for tables: the property that the check shows."""
    limit_seconds: float
    """Wall time after which it is killed."""

    @property
    def name(self) -> str:
        """Letter and title, as in ``A facts``."""
        return f"{self.letter} {self.title}"


CHECKS: Final = (
    Check(letter="A", module="facts", title="driver, versions, compiler and limits", limit_seconds=25),
    Check(letter="C", module="recorder", title="flight recorder of NCCL", limit_seconds=25),
    Check(letter="F", module="nccl_failures", title="faults of 2 to 4 ranks on NCCL", limit_seconds=120),
    Check(letter="D", module="hung_kernel", title="control of a process whose kernel does not end", limit_seconds=40),
    Check(letter="H", module="device_failures", title="reported cause of GPU faults", limit_seconds=45),
    Check(letter="I", module="missing_gpus", title="refusal where GPUs are missing", limit_seconds=35),
    Check(letter="E", module="abort_memory", title="memory after aborted groups", limit_seconds=30),
    Check(letter="J", module="snapshots", title="stall and memory of a checkpoint", limit_seconds=55),
    Check(letter="K", module="throughput", title="throughput against a hand-written loop", limit_seconds=120),
    Check(letter="G", module="layout_failures", title="faults of each layout with CUDA tensors", limit_seconds=60),
    Check(letter="L", module="memory_estimate", title="memory against kubectl ddp plan", limit_seconds=25),
    Check(letter="B", module="worker_fork", title="restart by fork with CUDA", limit_seconds=40),
    Check(letter="M", module="mixed_precision", title="precisions and bitwise resume", limit_seconds=50),
)

BUDGET_SECONDS: Final = 570.0
"""Wall time of all checks together; with the start of Python it stays below ten minutes."""

LEAST_SECONDS: Final = 10.0
"""A check that would get less of the budget is not started."""


def check_of(letter: str) -> Check:
    """Return the check with this letter.

    Raises:
        KeyError: There is none.
    """
    found = {check.letter: check for check in CHECKS}
    return found[letter]
