"""Recorder of a pod's launcher, which writes to the launcher's metrics file.

It implements the protocol ``AgentRecorder`` of :mod:`ddp_trainer.process.recorder`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import FailureReason, GroupState, OutsideReason, RestartCause
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.metric_names import Metric, cell
from ddp_trainer.common.time_classes import IN_POD, JobTime
from ddp_trainer.metrics.record.suppress_errors import suppress_errors, warn_once
from ddp_trainer.metrics.storage.mmap_directory import rank_metrics_path, rank_metrics_paths
from ddp_trainer.metrics.storage.mmap_store import RANK, InvalidMetricsFileError, MetricsFile, read
from ddp_trainer.process.recorder import AgentRecorder, RendezvousResult

COLLECTIVE_FAILURES: Final = {
    FailureReason.COLLECTIVE_TIMEOUT: "ddp_collective_timeouts_total",
    FailureReason.COLLECTIVE_ERROR: "ddp_collective_errors_total",
}
"""Series of a rank's metrics file that only the launcher writes, because it detects how a rank ended."""


_STATES: Final = {state: cell(Metric.GROUP_STATE, state) for state in GroupState}
_OUTSIDE: Final = {reason: cell(Metric.OUTSIDE_SINCE, reason) for reason in OutsideReason}
_FAILURES: Final = {reason: cell(Metric.FAILURES, reason) for reason in FailureReason}
_RESTARTS: Final = {cause: cell(Metric.RESTARTS, cause) for cause in RestartCause}
_NOTHING: Final[Mapping[str, float]] = {}


class MmapAgentRecorder(AgentRecorder):
    """Recorder that writes to the metrics file of the launcher."""

    def __init__(self, metrics_file: MetricsFile, directory: Path) -> None:
        self._file, self._directory = metrics_file, directory

    def _record(self, what: str, put: Mapping[str, float], add: Mapping[str, float] = _NOTHING) -> None:
        """Store and add values together; an error becomes one warning about ``what``."""
        try:
            self._file.update(put, add)
        except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
            warn_once(what, error)

    def state(self, state: GroupState) -> None:
        """Record the state that the worker group entered."""
        self._record("state", {key: float(known_state == state) for known_state, key in _STATES.items()})

    def count_restart(self, cause: RestartCause) -> None:
        """Count a restart of the worker group."""
        self._record("count_restart", {}, {_RESTARTS[cause]: 1.0})

    def failed(self, reason: FailureReason, rank: int, timestamp: float) -> None:
        """Count a worker process of this pod that ended unexpectedly, and record its rank and the Unix time."""
        last: dict[str, float] = {Metric.LAST_FAILURE: timestamp, Metric.LAST_FAILED_RANK: float(rank)}
        self._record("failed", last, {_FAILURES[reason]: 1.0})

    @suppress_errors
    def collective_failed(self, local_rank: int, reason: FailureReason) -> None:
        """Count a rank that ended, or left its group, because of a collective. Other reasons are ignored.

        The counter is in the rank's own metrics file, because the rank may not write there again.
        """
        if reason not in COLLECTIVE_FAILURES:
            return
        if metrics_file := MetricsFile.existing(rank_metrics_path(self._directory, local_rank), RANK):
            # No other process writes this cell. Only the rank changes the revision.
            metrics_file.add({COLLECTIVE_FAILURES[reason]: 1.0})
            metrics_file.close()

    def rendezvous_failed(self) -> None:
        """Count a failed attempt to reach the store."""
        self._record("rendezvous_failed", {}, {"ddp_rendezvous_failures_total": 1.0})

    def outside_group(self, reason: OutsideReason | None, since: float) -> None:
        """Record why this pod is in no group since a Unix time; None if it is in one."""
        self._record(
            "outside_group", {key: since if known_reason is reason else 0.0 for known_reason, key in _OUTSIDE.items()}
        )

    def rejected_connections(self, count: int) -> None:
        """Record the number of connections that the store has refused since it started."""
        self._record("rejected_connections", {"ddp_rendezvous_refused_connections_total": count})

    def rendezvous_completed(self, group: RendezvousResult) -> None:
        """Record a completed rendezvous, and count the restarts that led to it."""
        self._record(
            "rendezvous_completed",
            {
                "ddp_rendezvous_last_duration_seconds": group.seconds,
                Metric.RENDEZVOUS_ROUND: group.generation,
                Metric.WORLD_SIZE: group.size,
                Metric.NODES: group.nodes,
                "ddp_nodes_desired": group.nodes_desired,
                Metric.FIRST_RANK: group.first_rank,
                "ddp_restarts_remaining": group.restarts_left,
            },
            {
                "ddp_rendezvous_duration_seconds_sum": group.seconds,
                "ddp_rendezvous_duration_seconds_count": 1.0,
                **{_RESTARTS[cause]: float(count) for cause, count in group.restarts.items()},
            },
        )

    def stalled(self, seconds: float, rank: int) -> None:
        """Record a wait of this pod's ranks; see :class:`~ddp_trainer.process.recorder.AgentRecorder`."""
        self._record("stalled", {Metric.STALLED: seconds, Metric.STALLED_BY: rank})

    def job_account(self) -> JobAccount | None:
        """Return the time account with the latest end; None if no worker of this pod has reported one."""
        accounts = [_account(values) for values in self._ranks() if Metric.JOB_START in values]
        return max(accounts, key=lambda account: account.until, default=None)

    def highest_step(self) -> int | None:
        """Return the highest step that a worker of this pod has reported; 0 if none has."""
        return int(max((values.get(Metric.STEP, 0.0) for values in self._ranks()), default=0.0))

    def total_steps(self) -> int:
        """Return the planned number of steps of the run; 0 if no worker of this pod has reported it."""
        return int(max((values.get(Metric.STEPS_PLANNED, 0.0) for values in self._ranks()), default=0.0))

    def startup(self) -> Mapping[str, float]:
        """Return the start of this pod: ``began`` (Unix time) and the seconds of each phase; empty if unknown."""
        values = next(self._ranks(), {})
        if Metric.AGENT_START not in values:
            return {}
        cells = {str(phase): cell(Metric.STARTUP, phase) for phase in IN_POD}
        spent = {phase: round(values[key], 3) for phase, key in cells.items() if key in values}
        return {"began": round(values[Metric.AGENT_START], 3), **spent}

    def _ranks(self) -> Iterator[Mapping[str, float]]:
        """Yield the values of each rank's metrics file, including ranks that have ended."""
        for path in rank_metrics_paths(self._directory):
            with contextlib.suppress(InvalidMetricsFileError, OSError):
                yield read(path, RANK).values


def _account(values: Mapping[str, float]) -> JobAccount:
    return JobAccount(
        started=values[Metric.JOB_START],
        seconds=tuple(values.get(cell(Metric.JOB_TIME, state), 0.0) for state in JobTime),
        lost_steps=int(values.get(Metric.LOST_STEPS, 0.0)),
        lost_seconds=values.get(Metric.LOST_PROGRESS, 0.0),
    )
