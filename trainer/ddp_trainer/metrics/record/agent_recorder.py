"""Recorder of a pod's launcher, which writes to the launcher's board.

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
from ddp_trainer.metrics.record.suppress_errors import suppress_errors
from ddp_trainer.metrics.storage.mmap_directory import rank_board_path, rank_board_paths
from ddp_trainer.metrics.storage.mmap_store import RANK, Board, InvalidBoardError, read
from ddp_trainer.process.recorder import AgentRecorder

COLLECTIVE_FAILURES: Final = {
    FailureReason.COLLECTIVE_TIMEOUT: "ddp_collective_timeouts_total",
    FailureReason.COLLECTIVE_ERROR: "ddp_collective_errors_total",
}
"""Series of a rank's board that only the launcher writes, because it detects how a rank ended."""


class BoardAgentRecorder(AgentRecorder):
    """Recorder of the launcher on its board."""

    def __init__(self, board: Board, directory: Path) -> None:
        self._board, self._directory = board, directory

    @suppress_errors
    def state(self, state: GroupState) -> None:
        """Record the state that the worker group entered."""
        with self._board.atomic_update():
            self._board.put(
                {cell(Metric.GROUP_STATE, known_state): float(known_state == state) for known_state in GroupState}
            )

    @suppress_errors
    def count_restart(self, cause: RestartCause) -> None:
        """Count a restart of the worker group."""
        self._board.add({cell(Metric.RESTARTS, cause): 1.0})

    @suppress_errors
    def failed(self, reason: FailureReason, rank: int, timestamp: float) -> None:
        """Count a worker process of this pod that ended unexpectedly, and record its rank and the Unix time."""
        with self._board.atomic_update():
            self._board.add({cell(Metric.FAILURES, reason): 1.0})
            self._board.put({Metric.LAST_FAILURE: timestamp, Metric.LAST_FAILED_RANK: rank})

    @suppress_errors
    def collective_failed(self, local_rank: int, reason: FailureReason) -> None:
        """Count a rank that ended, or left its group, because of a collective. Other reasons are ignored.

        The counter is on the rank's own board, because the rank may not write there again.
        """
        if reason not in COLLECTIVE_FAILURES:
            return
        if board := Board.existing(rank_board_path(self._directory, local_rank), RANK):
            # No other process writes this cell. Only the rank changes the revision.
            board.add({COLLECTIVE_FAILURES[reason]: 1.0})
            board.close()

    @suppress_errors
    def rendezvous_failed(self) -> None:
        """Count a failed attempt to reach the store."""
        self._board.add({"ddp_rendezvous_failures_total": 1.0})

    @suppress_errors
    def outside_group(self, reason: OutsideReason | None, since: float) -> None:
        """Record why this pod is in no group since a Unix time; None if it is in one."""
        with self._board.atomic_update():
            cells = {known_reason: cell(Metric.OUTSIDE_SINCE, known_reason) for known_reason in OutsideReason}
            self._board.put({name: since if known_reason is reason else 0.0 for known_reason, name in cells.items()})

    @suppress_errors
    def rejected_connections(self, count: int) -> None:
        """Record the number of connections that the store has refused since it started."""
        self._board.put({"ddp_rendezvous_refused_connections_total": count})

    @suppress_errors
    def rendezvous(self, seconds: float, generation: int) -> None:
        """Record a completed rendezvous.

        Args:
            seconds: Duration of the rendezvous, in seconds.
            generation: Number of the rendezvous.
        """
        with self._board.atomic_update():
            total = "ddp_rendezvous_duration_seconds"
            self._board.add({f"{total}_sum": seconds, f"{total}_count": 1.0})
            self._board.put({"ddp_rendezvous_last_duration_seconds": seconds, Metric.RENDEZVOUS_ROUND: generation})

    @suppress_errors
    def world(self, *, size: int, nodes: int, nodes_desired: int, first_rank: int = 0) -> None:
        """Record the size of the new worker group.

        Args:
            size: Processes in the group.
            nodes: Nodes in the group.
            nodes_desired: Most nodes that the group can have.
            first_rank: First rank of this pod.
        """
        with self._board.atomic_update():
            self._board.put({Metric.WORLD_SIZE: size, Metric.NODES: nodes})
            self._board.put({"ddp_nodes_desired": nodes_desired, Metric.FIRST_RANK: first_rank})

    @suppress_errors
    def restarts_remaining(self, count: int) -> None:
        """Record the remaining restart budget of the run."""
        self._board.put({"ddp_restarts_remaining": count})

    @suppress_errors
    def stalled(self, seconds: float, rank: int) -> None:
        """Record a wait of this pod's ranks; see :class:`~ddp_trainer.process.recorder.AgentRecorder`."""
        with self._board.atomic_update():
            self._board.put({Metric.STALLED: seconds, Metric.STALLED_BY: rank})

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
        """Yield the values of each rank's board, including ranks that have ended."""
        for path in rank_board_paths(self._directory):
            with contextlib.suppress(InvalidBoardError, OSError):
                yield read(path, RANK).values


def _account(values: Mapping[str, float]) -> JobAccount:
    return JobAccount(
        started=values[Metric.JOB_START],
        seconds=tuple(values.get(cell(Metric.JOB_TIME, state), 0.0) for state in JobTime),
        lost_steps=int(values.get(Metric.LOST_STEPS, 0.0)),
        lost_seconds=values.get(Metric.LOST_PROGRESS, 0.0),
    )
