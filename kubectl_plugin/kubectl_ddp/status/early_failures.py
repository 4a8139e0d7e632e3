"""Failures of a running job that has not made a step: an error that comes again at every start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ddp_trainer.common.constants import RestartCause
from ddp_trainer.common.metric_names import Metric, MetricLabel
from kubectl_ddp.status.metrics_parser import Samples

LEAST_COUNT: Final = 2
"""Failures from which the start of a job counts as failing again and again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyFailures:
    """Failures before the first step of a job."""

    count: int
    """Restarts after failures."""
    reason: str
    """Most frequent :class:`~ddp_trainer.common.constants.FailureReason` of the pod that failed last."""
    rank: int
    """Rank that failed last."""
    pod: str
    last: float
    """Unix time of the last failure."""

    def __str__(self) -> str:
        return f"{self.count} failures before the first step, the last of rank {self.rank}: {self.reason}"


def find_early_failures(
    samples: Mapping[str, Samples], restarts: Mapping[str, int], step: int | None
) -> EarlyFailures | None:
    """Return the failures of a job that has not stepped; None if there are fewer than two.

    Args:
        samples: Name of a pod → its metrics.
        restarts: Restarts of the job by cause.
        step: Last step of the job; None if none was reported.
    """
    count = restarts.get(RestartCause.FAILURE, 0)
    failed_at = {pod: found.value(Metric.LAST_FAILURE) or 0.0 for pod, found in samples.items()}
    pod = max(failed_at, key=failed_at.__getitem__, default="")
    if step or count < LEAST_COUNT or not failed_at.get(pod):
        return None
    by_reason = samples[pod].by(MetricLabel.REASON, Metric.FAILURES)
    return EarlyFailures(
        count=count,
        reason=max(by_reason, key=by_reason.__getitem__, default=""),
        rank=int(samples[pod].value(Metric.LAST_FAILED_RANK) or 0),
        pod=pod,
        last=failed_at[pod],
    )
