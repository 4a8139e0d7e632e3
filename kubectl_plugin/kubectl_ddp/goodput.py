"""How much of a job's time went into training that counts, from what its pods say."""

from __future__ import annotations

from collections.abc import Iterable

from ddp_trainer.common import goodput as definition
from ddp_trainer.common.constants import JobTime, Metric
from kubectl_ddp.exposition import Samples


def goodput(told: Iterable[Samples]) -> float | None:
    """The share that :func:`ddp_trainer.common.goodput.goodput` defines, of the job so far; None where nobody accounts.

    Rank 0 accounts for the whole job; what it left on a pod that it was on before is the shorter account.
    """
    accounts = [(elapsed, said) for said in told if (elapsed := said.total(Metric.JOB_TIME)) > 0]
    if not accounts:
        return None
    _, said = max(accounts, key=lambda account: account[0])
    spent = {state: said.total(Metric.JOB_TIME, state=state) for state in JobTime}
    return max(0.0, definition.goodput(spent, said.total(Metric.LOST_PROGRESS)))
