"""The checks of ``bench gpu`` and their phases, in the order in which they run: those that show most come first."""

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
    phase: int
    """The checks of a phase run at the same time, the phases one after the other."""
    limit_seconds: float
    """Wall time after which it is killed."""
    least_seconds: float = 10.0
    """Least wall time: the check does not start if less of the budget is left."""
    value: int
    """1 for the check that is kept longest where the budget is short."""
    after: str = ""
    """Letter of a check that must pass first, unless ``--only`` leaves it out."""
    probes: bool = False
    """True if the GPU must answer first, because the check measures, or because a check before it injects faults."""


CHECKS: Final = (
    Check(
        letter="A", module="facts", title="driver, versions, compiler and limits", phase=0, limit_seconds=20, value=1
    ),
    Check(letter="N", module="rank_metrics", title="metrics of a rank on a GPU", phase=1, limit_seconds=40, value=3),
    Check(
        letter="I", module="missing_gpus", title="refusal where GPUs are missing", phase=1, limit_seconds=40, value=9
    ),
    Check(letter="B", module="worker_fork", title="restart by fork with CUDA", phase=1, limit_seconds=40, value=12),
    Check(letter="C", module="recorder", title="flight recorder of NCCL", phase=1, limit_seconds=25, value=14),
    Check(letter="P", module="nccl_pair", title="two ranks that train on NCCL", phase=2, limit_seconds=45, value=2),
    Check(
        letter="F1",
        module="nccl_survivors",
        title="faults of two ranks on NCCL that keep their processes",
        phase=3,
        limit_seconds=70,
        least_seconds=30.0,
        value=4,
        after="P",
        probes=True,
    ),
    Check(
        letter="F2",
        module="nccl_restarts",
        title="faults of two ranks on NCCL that restart",
        phase=4,
        limit_seconds=45,
        least_seconds=25.0,
        value=5,
        after="P",
        probes=True,
    ),
    Check(
        letter="S",
        module="layout_failures",
        title="a lost rank under each layout on NCCL",
        phase=5,
        limit_seconds=50,
        least_seconds=30.0,
        value=7,
        after="P",
        probes=True,
    ),
    Check(
        letter="H",
        module="device_failures",
        title="reported cause of GPU faults",
        phase=6,
        limit_seconds=30,
        value=8,
        probes=True,
    ),
    Check(
        letter="D",
        module="hung_kernel",
        title="control of a process whose kernel does not end",
        phase=6,
        limit_seconds=30,
        value=11,
    ),
    Check(
        letter="K",
        module="throughput",
        title="throughput against a hand-written loop",
        phase=7,
        limit_seconds=90,
        least_seconds=30.0,
        value=6,
        probes=True,
    ),
    Check(
        letter="J",
        module="snapshots",
        title="stall and memory of a checkpoint",
        phase=8,
        limit_seconds=45,
        least_seconds=20.0,
        value=10,
        probes=True,
    ),
    Check(
        letter="M",
        module="mixed_precision",
        title="precisions and bitwise resume",
        phase=9,
        limit_seconds=40,
        value=13,
        probes=True,
    ),
    Check(letter="E", module="abort_memory", title="memory after aborted groups", phase=9, limit_seconds=30, value=16),
    Check(
        letter="Q",
        module="other_paths",
        title="collectives, data-parallel, loaders and processors near the GPU",
        phase=9,
        limit_seconds=40,
        value=15,
    ),
)

BUDGET_SECONDS: Final = 480.0
"""Wall time of all checks by default."""


def check_of(letter: str) -> Check:
    """Return the check with this letter.

    Raises:
        KeyError: There is none.
    """
    found = {check.letter: check for check in CHECKS}
    return found[letter]
