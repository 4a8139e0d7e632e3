"""What the ranks of a pod have told of the job's time, read back from their boards: they may be gone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from ddp_trainer.contract import JobTime, Metric
from ddp_trainer.goodput import JobAccount
from ddp_trainer.metrics.board import RANK, StaleBoard, read
from ddp_trainer.metrics.catalogue import cell
from ddp_trainer.metrics.directory import rank_boards


def job_account(directory: Path) -> JobAccount | None:
    """The account that tells of the latest moment; None where no rank has told any."""
    return max(_accounts(directory), key=lambda account: account.until, default=None)


def _accounts(directory: Path) -> Iterator[JobAccount]:
    for path in rank_boards(directory):
        try:
            values = read(path, RANK).values
        except (StaleBoard, OSError):
            continue
        if Metric.JOB_START in values:
            yield _account(values)


def _account(values: Mapping[str, float]) -> JobAccount:
    return JobAccount(
        started=values[Metric.JOB_START],
        seconds=tuple(values.get(cell(Metric.JOB_TIME, state), 0.0) for state in JobTime),
        lost_steps=int(values.get(Metric.LOST_STEPS, 0.0)),
        lost_seconds=values.get(Metric.LOST_PROGRESS, 0.0),
    )
