"""Goodput of a job, from the metrics of its pods."""

from __future__ import annotations

from collections.abc import Iterable

from ddp_trainer.common import goodput as definition
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.common.time_classes import JobTime
from kubectl_ddp.status.metrics_parser import Samples


def goodput(told: Iterable[Samples]) -> float | None:
    """Return the goodput of the job so far, as defined by :func:`ddp_trainer.common.goodput.goodput`; None if unknown.

    Rank 0 accounts for the whole job. If it has moved, its former pod still reports an account, which is the shorter
    one.
    """
    accounts = [(elapsed, said) for said in told if (elapsed := said.total(Metric.JOB_TIME)) > 0]
    if not accounts:
        return None
    _, said = max(accounts, key=lambda account: account[0])
    spent = {state: said.total(Metric.JOB_TIME, state=state) for state in JobTime}
    return max(0.0, definition.goodput(spent, said.total(Metric.LOST_PROGRESS)))
