"""Job time and step numbers read from the boards of a pod's ranks, including ranks that have ended."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from ddp_trainer.common.constants import JobTime, Metric
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.metrics.families.family import cell
from ddp_trainer.metrics.storage.mmap_directory import rank_boards
from ddp_trainer.metrics.storage.mmap_store import RANK, StaleBoard, read


def job_account(directory: Path) -> JobAccount | None:
    """Return the time account with the latest end; None if no rank has reported one."""
    return max(_accounts(directory), key=lambda account: account.until, default=None)


def highest_step(directory: Path) -> int:
    """Return the highest step that a rank has reported; 0 if none has."""
    return int(max((values.get(Metric.STEP, 0.0) for values in _boards(directory)), default=0.0))


def steps_planned(directory: Path) -> int:
    """Return the planned number of steps of the run; 0 if no rank has reported it."""
    return int(max((values.get(Metric.STEPS_PLANNED, 0.0) for values in _boards(directory)), default=0.0))


def _accounts(directory: Path) -> Iterator[JobAccount]:
    return (_account(values) for values in _boards(directory) if Metric.JOB_START in values)


def _boards(directory: Path) -> Iterator[Mapping[str, float]]:
    for path in rank_boards(directory):
        with contextlib.suppress(StaleBoard, OSError):
            yield read(path, RANK).values


def _account(values: Mapping[str, float]) -> JobAccount:
    return JobAccount(
        started=values[Metric.JOB_START],
        seconds=tuple(values.get(cell(Metric.JOB_TIME, state), 0.0) for state in JobTime),
        lost_steps=int(values.get(Metric.LOST_STEPS, 0.0)),
        lost_seconds=values.get(Metric.LOST_PROGRESS, 0.0),
    )
