"""Construction of the recorders of a process, from the environment that the launcher sets.

Without ``$DDP_METRICS_DIR``, a recorder discards its reports. It also does so if the metrics file cannot be opened
(missing directory, disk full, read-only, owned by a living process); a warning then gives the reason.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.constants import Env, GroupState
from ddp_trainer.common.metric_names import Metric, MetricLabel
from ddp_trainer.metrics.record import ddp_comm_sampler
from ddp_trainer.metrics.record.agent_recorder import MmapAgentRecorder
from ddp_trainer.metrics.record.rank_recorder import MmapRankRecorder
from ddp_trainer.metrics.record.sampler import Watch
from ddp_trainer.metrics.record.user_metrics import Log, StepMeter
from ddp_trainer.metrics.storage.mmap_directory import LOCAL_WORLD_SIZE, agent_metrics_path, rank_metrics_path
from ddp_trainer.metrics.storage.mmap_store import AGENT, RANK, MetricsFile
from ddp_trainer.metrics.storage.process import ProcessId, is_ancestor, read_process_stats
from ddp_trainer.metrics.storage.user_values import UserValues, user_values_path
from ddp_trainer.process.heartbeat_page import marks
from ddp_trainer.process.recorder import AgentRecorder, NoopAgentRecorder, NoopRankRecorder, RankRecorder
from ddp_trainer.process.startup_times import STARTUP

_watching: Final[list[GcTimer]] = []


class GcTimer:
    """Callback that reports the duration of each garbage collection.

    Collections are a known cause of stragglers, since each rank collects at a different time.
    """

    def __init__(self, report: Callable[[float], None]) -> None:
        self._report = report
        self._began: float | None = None

    def __call__(self, phase: str, _: Mapping[str, int]) -> None:
        """Handle one event of :data:`gc.callbacks`."""
        if phase == "start":
            self._began = time.perf_counter()
        elif self._began is not None:
            self._report(time.perf_counter() - self._began)
            self._began = None


def watch_gc(report: Callable[[float], None]) -> None:
    """Call ``report`` with the seconds of each collection from now on. It replaces the previous callback."""
    for before in _watching:
        if before in gc.callbacks:
            gc.callbacks.remove(before)
    _watching[:] = [GcTimer(report)]
    gc.callbacks.extend(_watching)


_log: Final = logging.getLogger(__name__)

stand_ins: Final[list[Callable[[], None]]] = []
"""Functions that remove the hooks for scripts without reports, once the script reports itself."""

_Key = tuple[str | None, str | None, int]
"""Directory of the metrics files, local rank and process id. A fork has another id."""
_recorders: Final = weakref.WeakValueDictionary[_Key, RankRecorder]()
_logs: Final = dict[_Key, Log]()


def rank_recorder(environment: Mapping[str, str] = os.environ) -> RankRecorder:
    """Return the recorder of this rank. Never raises.

    Reads ``DDP_METRICS_DIR`` and torchrun's ``RANK``, ``LOCAL_RANK``, ``LOCAL_WORLD_SIZE``, ``GROUP_RANK``. A child of
    a rank, such as a data loader worker, inherits these variables and gets a silent recorder, because the rank already
    reports.
    """
    for leave in stand_ins:
        leave()
    stand_ins.clear()
    return open_rank_recorder(environment)


def open_rank_recorder(environment: Mapping[str, str], *, measures_waits: bool = True) -> RankRecorder:
    """Return the recorder of this rank, and keep the hooks of a script that does not report.

    Args:
        environment: Environment of the process.
        measures_waits: False if the caller cannot report how long the loop waits for other ranks.
    """
    directory = environment.get(Env.METRICS_DIR)
    recorder: RankRecorder | None = None
    try:
        if directory:
            recorder = _rank_recorder(Path(directory), environment, measures_waits=measures_waits)
    except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
        _log.warning("metrics are off for this rank: no metrics file in %s (%s); training continues", directory, error)
    if recorder is None:
        recorder = NoopRankRecorder(marks(environment), _user_values(None, os.getpid()).take)
    _recorders[_key(environment)] = recorder
    return recorder


def agent_recorder(directory: Path | None = None, environment: Mapping[str, str] = os.environ) -> AgentRecorder:
    """Return the recorder of this pod's launcher. Never raises.

    The metrics file is made in ``directory``, which is created if missing, or else in ``$DDP_METRICS_DIR``.
    """
    folder = directory or environment.get(Env.METRICS_DIR)
    if not folder:
        return NoopAgentRecorder()
    try:
        Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
        metrics_file = MetricsFile.open(agent_metrics_path(Path(folder)), AGENT)
        _claim(metrics_file, ProcessId.current())
    except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
        _log.warning("metrics are off for the launcher: no metrics file in %s (%s); training continues", folder, error)
        return NoopAgentRecorder()
    recorder = MmapAgentRecorder(metrics_file, Path(folder))
    recorder.state(GroupState.PENDING)
    return recorder


def meter(environment: Mapping[str, str] = os.environ) -> StepMeter:
    """Return a stopwatch for any loop (:class:`~ddp_trainer.metrics.record.user_metrics.StepMeter`)."""
    return StepMeter(rank_recorder(environment))


def log(environment: Mapping[str, str] = os.environ, /, **values: Any) -> Log:
    """Record values that only the script has, and return the log of this process. The hooks continue to count steps.

    Args:
        environment: Environment of the process.
        values: Arguments of :class:`~ddp_trainer.metrics.record.user_metrics.Log`, such as ``loss=0.25`` and
            ``val_accuracy=0.93``.
    """
    key = _key(environment)
    if key not in _logs:
        recorder = _recorders.get(key) or open_rank_recorder(environment)
        own = recorder.user_values if isinstance(recorder, MmapRankRecorder) else _user_values(None, os.getpid())
        _logs[key] = Log(recorder, own=own)
    if values:
        _logs[key](**values)
    return _logs[key]


def _key(environment: Mapping[str, str]) -> _Key:
    return environment.get(Env.METRICS_DIR), environment.get("LOCAL_RANK"), os.getpid()


@cache
def _user_values(metrics_file: Path | None, pid: int) -> UserValues:  # noqa: ARG001 - a fork has values of its own
    """Return the values of the script, which all recorders of this process and its log share."""
    return UserValues(None if metrics_file is None else user_values_path(metrics_file))


def _claim(metrics_file: MetricsFile, process: ProcessId) -> None:
    """Make ``process`` the owner of the metrics file.

    Raises OSError if a living process owns it, since both would write there.
    """
    owner = metrics_file.owner
    if owner != process and read_process_stats(owner) is not None:
        metrics_file.close()
        raise OSError(f"the one that is there belongs to process {owner.pid}, which runs")
    metrics_file.claim(process)


def _rank(environment: Mapping[str, str], known: Mapping[str, str | int]) -> int:
    """Return the rank from the environment, else the previous rank of the slot, else -1; 0 without a launcher."""
    if "RANK" in environment:
        return int(environment["RANK"])
    return int(known.get(MetricLabel.RANK, -1)) if "LOCAL_RANK" in environment else 0


def _rank_recorder(directory: Path, environment: Mapping[str, str], *, measures_waits: bool) -> RankRecorder:
    local_rank = int(environment.get("LOCAL_RANK", "0"))
    process = ProcessId.current()
    path = rank_metrics_path(directory, local_rank)
    metrics_file = MetricsFile.open(path, RANK)
    owner = metrics_file.owner
    if owner != process and is_ancestor(owner):
        metrics_file.close()
        return NoopRankRecorder()
    _claim(metrics_file, process)
    known = metrics_file.identity
    metrics_file.describe(
        # Backend and device of the slot remain until the rank reports its own: they rarely change.
        known
        | {
            MetricLabel.RANK: _rank(environment, known),
            MetricLabel.LOCAL_RANK: local_rank,
            MetricLabel.NODE_RANK: int(environment.get("GROUP_RANK", "0")),
            MetricLabel.RUN_ID: environment.get(Env.RUN_ID, ""),
            LOCAL_WORLD_SIZE: int(environment.get("LOCAL_WORLD_SIZE", str(local_rank + 1))),
        }
    )
    recorder = MmapRankRecorder(metrics_file, marks=marks(environment), own=_user_values(path, os.getpid()))
    recorder.watch(Watch(recorder, measures_waits=measures_waits))
    if local_rank == 0:
        recorder.record_startup(STARTUP)
    ddp_comm_sampler.track_ddp_models(sys.modules.get("torch"))
    watch_gc(partial(recorder.add, Metric.GC_PAUSE_SECONDS))
    return recorder
