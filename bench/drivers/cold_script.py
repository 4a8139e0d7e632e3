"""Parts of ``bench recovery-cluster``: a plain DDP script in small pods, which have imported nothing when they start.

Every other fault is compared with a later kill of a worker in the same job.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from statistics import median
from typing import TYPE_CHECKING, Final

from bench.drivers.agent_recovery import RecoveryStats
from bench.drivers.cluster_runs import CPU_BESIDE_SPARES, BaselineRun, Run, ScriptRun
from bench.drivers.deleted_pods import WAIT_SECONDS, delete_member
from bench.harness import Report

if TYPE_CHECKING:
    from bench.measurements.recovery_cluster import ClusterBench

COLD_SECONDS: Final = 2.0
"""Training time before the first kill, in which no script has shown yet what its steps import."""
SETTLED_SECONDS: Final = 10.0
AFTER_SECONDS: Final = 3.0
"""The pause of the survivors is watched until the group has been whole for so long."""
LATER_KILL: Final = "cold_script_later_kill"
RATIOS: Final = {
    "cold_script_first_kill": 3.0,
    "cold_script_pause_of_deleted_pod": 2.0,
    "cold_script_pause_of_scale_up": 2.0,
    "cold_script_deleted_pod_with_spare": 2.0,
}
"""Fault → upper limit of its median, in medians of a later kill."""


class ColdScriptRun(ScriptRun):
    """A plain DDP script in pods of a quarter of a core."""

    cpu = CPU_BESIDE_SPARES


class ColdBaselineRun(BaselineRun):
    """The same script in the same pods under torchrun."""

    cpu = CPU_BESIDE_SPARES


def measure_recovery(bench: ClusterBench, kind: type[Run]) -> None:
    """A worker is killed 2 s after the first step, and again later; a pod is deleted; a pod is added."""
    with bench.job(kind, f"{kind.__name__.lower()}-cold", 1, 2, counts_start=False) as run:
        outcomes = bench.of(run)
        time.sleep(COLD_SECONDS)
        names = ("cold_script_first_kill", *[LATER_KILL] * bench.round_count)
        for name in names:
            begun = bench.access.kill(run.pods()[1], run.worker(run.pods()[1]))
            outcomes.since(name, begun, run.first(begun, WAIT_SECONDS, world=2))
            bench.options.progress(f"{kind.__name__}: {outcomes}")
            run.train(2, WAIT_SECONDS, lasting=SETTLED_SECONDS)
        for _ in range(bench.round_count):
            outcomes.add("cold_script_pause_of_deleted_pod", _pause(run, lambda: run.delete_pod(run.pods()[1])))
            bench.options.progress(f"{kind.__name__}: {outcomes}")


def scaled_up(bench: ClusterBench, kind: type[Run]) -> None:
    """A node is added to a group of one."""
    with bench.job(kind, f"{kind.__name__.lower()}-cold-scaled", 1, 2, counts_start=False) as run:
        outcomes = bench.of(run)
        for _ in range(bench.round_count):
            run.scale(1)
            run.train(1, WAIT_SECONDS, lasting=SETTLED_SECONDS)
            outcomes.add("cold_script_pause_of_scale_up", _pause(run, lambda: run.scale(2)))
            bench.options.progress(f"{kind.__name__}: {outcomes}")


def with_spare(bench: ClusterBench, kind: type[Run]) -> None:
    """A member of a group of two is deleted beside a spare."""
    with bench.job(kind, "cold-spare", 2, 2, counts_start=False, spares=1) as run:
        outcomes = bench.of(run)
        assert isinstance(run, ScriptRun)
        for _ in range(bench.round_count):
            run.wait_for_spares(WAIT_SECONDS)
            run.train(2, WAIT_SECONDS, lasting=SETTLED_SECONDS)
            begun = delete_member(run)
            outcomes.since("cold_script_deleted_pod_with_spare", begun, run.first(begun, WAIT_SECONDS, world=2))
            bench.options.progress(f"{kind.__name__}: {outcomes}")


def _pause(run: Run, change: Callable[[], object]) -> float | None:
    """Return the longest time without a step from a change of two nodes until these have trained; None without end."""
    begun = time.time()
    change()
    stepped = run.first(begun, WAIT_SECONDS, world=2)
    if stepped is None:
        return None
    run.train(2, WAIT_SECONDS, lasting=AFTER_SECONDS)
    return run.longest_pause(begun, stepped + AFTER_SECONDS)


def compare_recovery_times(report: Report, own: RecoveryStats) -> None:
    """Compare each fault with a later kill of the same run."""
    if not (kills := own.seconds(LATER_KILL) if LATER_KILL in own.tries else []):
        return
    for name in RATIOS.keys() & own.tries.keys():
        seconds = [math.inf if value is None else value for value in own.tries[name]]
        report.at_most(f"later kills, {name.replace('_', ' ')}", median(seconds) / median(kills), RATIOS[name])
