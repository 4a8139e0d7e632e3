"""Parts of ``bench recovery-cluster``: pods of a job that are deleted one after the other, with a spare and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from bench.drivers.cluster_runs import Run, TrainerRun
from ddp_trainer.common.constants import GroupState

if TYPE_CHECKING:
    from bench.measurements.recovery_cluster import ClusterBench

WAIT_SECONDS: Final = 150.0
"""Time for a deleted pod to be replaced and to have imported again."""
IN_A_ROW: Final = ("first", "second", "third")
OPERATOR_BARS: Final = {f"{which}_deleted_pod_until_whole": 7.0 for which in IN_A_ROW}
"""Limits without a spare, in seconds. A Kubernetes Job replaces no pod sooner than 10 s after its end."""


def spare_limits(prefixes: list[str]) -> dict[str, float]:
    """Return the limits with a spare by the name of the fault, in seconds, for engines with these prefixes."""
    return {f"{prefix}pod_deleted_with_spare_until_whole": 1.5 for prefix in prefixes}


def with_spare(prefix: str) -> Callable[[ClusterBench, type[Run]], None]:
    """Return a part that deletes a member of a group of two beside a spare, again when its successor is the spare."""

    def part(bench: ClusterBench, kind: type[Run]) -> None:
        with bench.job(kind, f"{prefix}with-spare".replace("_", "-"), 2, 2, counts_start=False, spares=1) as run:
            assert isinstance(run, TrainerRun)
            for _ in range(bench.round_count):
                run.wait_for_spares(WAIT_SECONDS)
                bench.fault(run, f"{prefix}pod_deleted_with_spare", 2, lambda _, its: delete_member(its))

    return part


def in_a_row(prefix: str) -> Callable[[ClusterBench, type[Run]], None]:
    """Return a part that deletes worker-1, worker-0 and worker-1 of one job without spares."""

    def part(bench: ClusterBench, kind: type[Run]) -> None:
        with bench.job(kind, f"{prefix}in-a-row".replace("_", "-"), 1, 2, counts_start=False) as run:
            for which, index in zip(IN_A_ROW, (1, 0, 1), strict=True):
                name = f"{prefix}{which}_deleted_pod"
                bench.fault(run, name, 2, lambda _, its, index=index: its.delete_pod(its.pods()[index]))

    return part


def delete_member(run: Run) -> float:
    assert isinstance(run, TrainerRun)
    return run.delete_pod(run.pods_in(GroupState.RUNNING)[-1])
