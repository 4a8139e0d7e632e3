"""How a process gets its recorder: by what the launcher has put into its environment.

Where ``$DDP_METRICS_DIR`` is not set, the recorder reports to nobody. Where it is set and the board cannot be had (no
such directory, disk full, read-only, a living process has it), one line of warning says so and the recorder reports to
nobody too.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env, GroupState, MetricLabel
from ddp_trainer.metrics.collect import gc_time
from ddp_trainer.metrics.record import ddp_comm_sampler
from ddp_trainer.metrics.record.agent_recorder import BoardAgentRecorder
from ddp_trainer.metrics.record.rank_recorder import BoardRankRecorder
from ddp_trainer.metrics.record.sampler import Watch
from ddp_trainer.metrics.record.step_meter import Meter
from ddp_trainer.metrics.record.user_metrics import Log
from ddp_trainer.metrics.storage.mmap_directory import LOCAL_WORLD_SIZE, agent_board, rank_board
from ddp_trainer.metrics.storage.mmap_store import AGENT, RANK, Board
from ddp_trainer.metrics.storage.process import ProcessId, is_ancestor, vitals
from ddp_trainer.process.heartbeat_page import marks
from ddp_trainer.process.recorder import AgentRecorder, RankRecorder, SilentAgentRecorder, SilentRankRecorder

_log: Final = logging.getLogger(__name__)

stand_ins: Final[list[Callable[[], None]]] = []
"""Have those leave who report steps in a script's stead, once it does so itself."""


def rank_recorder(environment: Mapping[str, str] = os.environ) -> RankRecorder:
    """The recorder of this rank; never raises.

    Reads ``DDP_METRICS_DIR`` and torchrun's ``RANK``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``GROUP_RANK``. A child of
    a rank, such as a worker of its data loader, inherits these and gets a silent recorder: the rank speaks for it.
    """
    for leave in stand_ins:
        leave()
    stand_ins.clear()
    return opened(environment)


def opened(environment: Mapping[str, str], *, waits_are_told: bool = True) -> RankRecorder:
    """As :func:`rank_recorder`, for one who reports in the script's stead, and cannot tell what it waits for."""
    directory = environment.get(Env.METRICS_DIR)
    if not directory:
        return SilentRankRecorder(marks(environment))
    try:
        return _rank_recorder(Path(directory), environment, waits_are_told=waits_are_told)
    except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
        _log.warning("metrics are off for this rank: no board in %s (%s); training goes on", directory, error)
        return SilentRankRecorder(marks(environment))


def agent_recorder(directory: Path | None = None, environment: Mapping[str, str] = os.environ) -> AgentRecorder:
    """The recorder of this pod's launcher; never raises.

    The board is made in ``directory``, which is created if missing, or else in ``$DDP_METRICS_DIR``.
    """
    told = directory or environment.get(Env.METRICS_DIR)
    if not told:
        return SilentAgentRecorder()
    try:
        Path(told).mkdir(mode=0o700, parents=True, exist_ok=True)
        board = Board.open(agent_board(Path(told)), AGENT)
        _claim(board, ProcessId.current())
    except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
        _log.warning("metrics are off for the launcher: no board in %s (%s); training goes on", told, error)
        return SilentAgentRecorder()
    recorder = BoardAgentRecorder(board, Path(told))
    recorder.state(GroupState.PENDING)
    return recorder


def meter(environment: Mapping[str, str] = os.environ) -> Meter:
    """A stopwatch for the training loop of any script, see :class:`~ddp_trainer.metrics.record.step_meter.Meter`."""
    return Meter(rank_recorder(environment))


def log(environment: Mapping[str, str] = os.environ) -> Log:
    """What only the script knows is told here, see :class:`~ddp_trainer.metrics.record.user_metrics.Log`; its steps are
    counted on.
    """
    return Log(opened(environment))


def _claim(board: Board, process: ProcessId) -> None:
    """Make it the board of ``process``. Raises OSError where it is that of a living one: two would make one of both."""
    owner = board.owner
    if owner != process and vitals(owner) is not None:
        board.close()
        raise OSError(f"the one that is there belongs to process {owner.pid}, which runs")
    board.claim(process)


def _rank(environment: Mapping[str, str], known: Mapping[str, str | int]) -> int:
    """The rank by the environment; one that a launcher has not given a place yet is what its slot was, -1 for none."""
    if "RANK" in environment:
        return int(environment["RANK"])
    return int(known.get(MetricLabel.RANK, -1)) if "LOCAL_RANK" in environment else 0


def _rank_recorder(directory: Path, environment: Mapping[str, str], *, waits_are_told: bool) -> RankRecorder:
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    process = ProcessId.current()
    board = Board.open(rank_board(directory, local_rank), RANK)
    owner = board.owner
    if owner != process and is_ancestor(owner):
        board.close()
        return SilentRankRecorder()
    _claim(board, process)
    known = board.identity
    board.describe(
        # Backend and device stay those of the slot until the rank tells its own: they hardly ever change.
        known
        | {
            MetricLabel.RANK: _rank(environment, known),
            MetricLabel.LOCAL_RANK: local_rank,
            MetricLabel.NODE_RANK: int(environment.get("GROUP_RANK", "0")),
            MetricLabel.RUN_ID: environment.get(Env.RUN_ID, ""),
            LOCAL_WORLD_SIZE: int(environment.get("LOCAL_WORLD_SIZE", str(local_rank + 1))),
        }
    )
    recorder = BoardRankRecorder(board, marks=marks(environment))
    recorder.watch(Watch(recorder, waits_are_told=waits_are_told))
    ddp_comm_sampler.follow(sys.modules.get("torch"))
    gc_time.watch(recorder.collected)
    return recorder
