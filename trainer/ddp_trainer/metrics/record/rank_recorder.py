"""Recorder of a rank, which writes to the rank's metrics file.

It implements the protocol ``RankRecorder`` of :mod:`ddp_trainer.process.recorder`. :meth:`MmapRankRecorder.step` runs
on the training thread at every step and costs about a microsecond (``python -m bench metrics``): plain stores through a
memoryview, no lock, no system call.
"""

from __future__ import annotations

import math
import os
import sys
import time
import weakref
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.metric_names import Metric, MetricLabel, cell
from ddp_trainer.common.parallel_dims import DIMENSION_NAMES, LayoutError, LayoutRange
from ddp_trainer.common.time_classes import JobTime, Phase, StartupPhase, Wait
from ddp_trainer.metrics.collect.gpu import identity_of, nccl_version, peak_flops
from ddp_trainer.metrics.families.rank_families import STEP_SECONDS
from ddp_trainer.metrics.record.sampler import Watch
from ddp_trainer.metrics.record.step_detector import StepBatch
from ddp_trainer.metrics.record.suppress_errors import suppress_errors, warn_once
from ddp_trainer.metrics.storage.mmap_store import RANK, MetricsFile
from ddp_trainer.metrics.storage.user_values import UserValues
from ddp_trainer.process.recorder import Marks, RankRecorder
from ddp_trainer.process.startup_times import StartupTimes

STEPS: Final = RANK.cell_index[Metric.STEPS]
SAMPLES: Final = RANK.cell_index[Metric.SAMPLES]
DATA_WAIT, H2D, FORWARD, BACKWARD, COMM_EXPOSED, OPTIMIZER, CHECKPOINT, OTHER = (
    RANK.cell_index[cell(Metric.PHASE_SECONDS, phase)] for phase in Phase
)
STEP: Final = RANK.cell_index[Metric.STEP]
EPOCH: Final = RANK.cell_index[Metric.EPOCH]
LOSS: Final = RANK.cell_index[Metric.LOSS]
LEARNING_RATE: Final = RANK.cell_index[Metric.LEARNING_RATE]
LAST_STEP_TIMESTAMP: Final = RANK.cell_index[Metric.LAST_STEP_TIMESTAMP]
STARTED: Final = RANK.cell_index[cell(Metric.STARTUP, StartupPhase.FIRST_STEP)]
FIRST_BUCKET: Final = RANK.cell_index[cell(Metric.STEP_DURATION, str(STEP_SECONDS[0]))]
"""The other buckets follow, in order of their bounds."""

_WORD_BYTES: Final = 128
"""Most characters of a text in the metrics file, so that all texts fit."""


def _place(parallel: LayoutRange | None, rank: int, world_size: int) -> dict[str, str]:
    """Return the coordinates of a rank by label; empty texts replace those of a previous group."""
    try:
        layouts = parallel or LayoutRange.parse(os.environ.get(Env.PARALLEL, ""))
        coordinates = layouts.coordinates(rank, world_size)
    except LayoutError:  # there is no layout, or the trainer will refuse it
        coordinates = {}
    return {label: str(coordinates.get(label, "")) for label in DIMENSION_NAMES}


class MmapRankRecorder(RankRecorder):
    """Recorder that writes to the metrics file of one rank.

    Every method is thread-safe, except ``step``, which one thread must call.
    """

    def __init__(
        self,
        metrics_file: MetricsFile,
        clock: Callable[[], float] = time.time,
        marks: Marks | None = None,
        own: UserValues | None = None,
    ) -> None:
        self.marks: Marks = [0.0, 0.0] if marks is None else marks
        self.user_values = UserValues(None) if own is None else own
        """Values that the script names itself."""
        self._file = metrics_file
        self._cells = metrics_file.cells
        self._revision = metrics_file.revision
        self._clock = clock
        self.watched_by: Watch | None = None
        """Sampler that measures some steps more closely."""
        self._check_at = self._sample_at = math.inf
        self._checked_at = 0.0
        self._startup: StartupTimes | None = None
        _living.add(self)

    @property
    def steps(self) -> int:
        """Steps recorded in this metrics file, by this process and its predecessors."""
        return int(self._cells[STEPS])

    def watch(self, watch: Watch) -> None:
        """Call ``watch`` at the steps that it requests."""
        self.watched_by = watch
        self._checked_at = self._cells[STEPS]
        self._check_at = self._sample_at = self._checked_at + watch.first

    @suppress_errors
    def record_startup(self, startup: StartupTimes) -> None:
        """Record the phases of this process's start, unless an earlier process of the pod has taken a step."""
        if math.isnan(self._cells[STARTED]):
            self._startup, startup.listener = startup, self._record_startup
            self._check_at = self._cells[STEPS] + 1.0
            self._record_startup()

    @suppress_errors
    def _record_startup(self) -> None:
        if self._startup is not None:
            began, seconds = self._startup.seconds()
            with self._file.atomic_update():
                self._file.put({cell(Metric.STARTUP, phase): spent for phase, spent in seconds.items()})
                self._file.put({Metric.AGENT_START: began})

    @property
    def steps_before_sample(self) -> int:
        """Steps until the sampler runs, that step included."""
        return int(min(self._check_at - self._cells[STEPS], sys.maxsize))

    def _update_sampler(self, count: float, seconds: float, waited: float, data_wait: float) -> None:
        if self._startup is not None:
            self._startup.finish(seconds, data_wait)
            self._startup, self._check_at = None, self._sample_at
        if self.watched_by is not None and count >= self._check_at:
            self._check_at = count + self.watched_by.sample_if_due(seconds, waited, int(count - self._checked_at))
            self._checked_at = count

    def detach(self) -> None:
        """Stop writing to the file after a fork: only the parent process writes there."""
        self._file.detach()
        self._cells, self._revision = self._file.cells, self._file.revision

    @suppress_errors
    def identity(
        self,
        *,
        rank: int,
        local_rank: int,
        world_size: int,
        backend: str,
        device: str,
        parallel: LayoutRange | None = None,
    ) -> None:
        """Record the identity of this process.

        Args:
            rank: Global rank.
            local_rank: Rank within the pod.
            world_size: Ranks of the group.
            backend: Backend of the process group.
            device: Device as torch names it, for example ``cuda:0``.
            parallel: Layouts that the group may take; those of the job if None.
        """
        known = self._file.identity | {MetricLabel.RANK: rank, MetricLabel.LOCAL_RANK: local_rank}
        words = {MetricLabel.BACKEND: backend[:_WORD_BYTES], MetricLabel.DEVICE: device[:_WORD_BYTES]}
        gpu = identity_of(device)
        self._file.describe(known | words | gpu | _place(parallel, rank, world_size) | {"world_size": world_size})
        self._file.put({Metric.PEAK_FLOPS: peak_flops(gpu[MetricLabel.DEVICE_NAME])})

    @suppress_errors
    def job(self, *, precision: str, parallelism: str) -> None:
        """Record precision and parallelism of the job."""
        torch = sys.modules.get("torch")
        words = {
            MetricLabel.TORCH_VERSION: str(getattr(torch, "__version__", "")),
            MetricLabel.NCCL_VERSION: nccl_version(torch),
            MetricLabel.PRECISION: precision[:_WORD_BYTES],
            MetricLabel.PARALLELISM: parallelism[:_WORD_BYTES],
        }
        self._file.describe(self._file.identity | words)

    @suppress_errors
    def add(self, metric: str, amount: float = 1.0) -> None:
        """Add to a counter."""
        self._file.add({metric: amount})

    @suppress_errors
    def put(self, metric: str, value: float | None) -> None:
        """Set a gauge."""
        self._file.put({metric: value})

    def step(
        self,
        step: int,
        epoch: int,
        samples: int,
        data_wait: float,
        h2d: float,
        forward: float,
        backward: float,
        comm_exposed: float,
        optimizer: float,
        checkpoint: float,
        other: float,
    ) -> None:
        """Record a committed global step.

        This is the hot path, so :meth:`MetricsFile.atomic_update` and ``suppress_errors`` are inlined.

        Args:
            step: Number of the global step.
            epoch: Epoch of the step, from 0.
            samples: Samples of this rank.
            data_wait: Seconds of waiting for data.
            h2d: Seconds of copies from host to device.
            forward: Seconds of the forward pass.
            backward: Seconds of the backward pass.
            comm_exposed: Seconds of waiting for gradients.
            optimizer: Seconds of the optimizer.
            checkpoint: Seconds of checkpoints.
            other: Other seconds.
        """
        try:
            cells = self._cells
            revision = self._revision
            odd = revision[0] | 1
            revision[0] = odd
            count = cells[STEPS] + 1.0
            cells[STEPS] = count
            cells[SAMPLES] += samples
            cells[DATA_WAIT] += data_wait
            if h2d:  # most steps have none, and a test is cheaper than a store
                cells[H2D] += h2d
            cells[FORWARD] += forward
            cells[BACKWARD] += backward
            cells[COMM_EXPOSED] += comm_exposed
            cells[OPTIMIZER] += optimizer
            if checkpoint:
                cells[CHECKPOINT] += checkpoint
            cells[OTHER] += other
            seconds = data_wait + h2d + forward + backward + comm_exposed + optimizer + checkpoint + other
            cells[FIRST_BUCKET + bisect_left(STEP_SECONDS, seconds)] += 1.0
            cells[STEP] = step
            cells[EPOCH] = epoch
            cells[LAST_STEP_TIMESTAMP] = self._clock()
            revision[0] = odd + 1
            if count >= self._check_at:
                self._update_sampler(count, seconds, comm_exposed, data_wait)
        except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
            warn_once("step", error)

    def record_step_number(self, steps: int) -> None:
        """Record the number of the step that is ``steps`` after the last recorded one. It costs one store."""
        self._cells[STEP] = self._cells[STEPS] + steps

    @suppress_errors
    def record_steps(self, batch: StepBatch, forward: float, exposed: float) -> None:
        """Record steps, the last of which has just ended. Each other one fits into the first bucket.

        Args:
            batch: The steps.
            forward: Seconds of their forward passes.
            exposed: Seconds in which the rank waited for gradients.
        """
        cells = self._cells
        with self._file.atomic_update():
            cells[STEPS] += batch.steps
            cells[STEP] = cells[STEPS]
            cells[SAMPLES] += batch.samples
            cells[DATA_WAIT] += batch.waited
            cells[FORWARD] += forward
            cells[BACKWARD] += batch.computed - forward - exposed
            cells[COMM_EXPOSED] += exposed
            cells[OPTIMIZER] += batch.optimized
            cells[OTHER] += batch.other
            cells[FIRST_BUCKET] += batch.steps - 1
            cells[FIRST_BUCKET + bisect_left(STEP_SECONDS, batch.last)] += 1.0
            cells[LAST_STEP_TIMESTAMP] = self._clock()
        if cells[STEPS] >= self._check_at:
            self._update_sampler(cells[STEPS], batch.last, exposed, batch.waited)

    def progress(self, loss: float | None = None, learning_rate: float | None = None) -> None:
        """Record the mean loss of the last step over all ranks, and its learning rate.

        The trainer calls it at every step, so it writes like :meth:`step`.
        """
        try:
            if loss is not None:
                self._cells[LOSS] = loss
                self.user_values.has_own_loss = True
            if learning_rate is not None:
                self._cells[LEARNING_RATE] = learning_rate
        except Exception as error:  # noqa: BLE001 - training does not fail because of its metrics
            warn_once("progress", error)

    @suppress_errors
    def gradients(self, norm: float | None, loss_scale: float | None) -> None:
        """Record the norm of the last step's whole gradient, and the loss scale."""
        self._file.put({Metric.GRADIENT_NORM: norm, Metric.LOSS_SCALE: loss_scale})

    @suppress_errors
    def work(self, tokens: float, flops: float) -> None:
        """Add tokens and floating-point operations of this rank."""
        self._file.add({Metric.TOKENS: tokens, Metric.MODEL_FLOPS: flops})

    @suppress_errors
    def record_wait(self, seconds: Mapping[Wait, float]) -> None:
        """Add seconds that this rank waited for others."""
        self._file.add({cell(Metric.WAIT_SECONDS, wait): more for wait, more in seconds.items()})
        if Wait.STAGE in seconds and self.watched_by is not None:
            self.watched_by.ignore_loop_waits()

    @suppress_errors
    def sampled(self, busy_seconds: float, comm_exposed_seconds: float) -> None:
        """Record a sampled step, by seconds of work and of waiting for gradients."""
        with self._file.atomic_update():
            self._file.add({Metric.SAMPLED_STEPS: 1.0, Metric.SAMPLED_BUSY: busy_seconds})
            self._file.add({Metric.SAMPLED_COMM_EXPOSED: comm_exposed_seconds})

    @suppress_errors
    def gpu_memory(self, memory: Mapping[str, float], before: Mapping[str, float]) -> None:
        """Record the GPU's memory, and add what its counters have grown since ``before``; see :func:`gpu.memory`."""
        for name, value in memory.items():
            if name.endswith("_total"):
                self._file.add({name: value - before.get(name, 0.0)})
            else:
                self._file.put({name: value})

    @suppress_errors
    def record_evaluation(self, loss: float, accuracy: float) -> None:
        """Record the result of an evaluation over all ranks."""
        self._file.put({"ddp_eval_loss": loss, "ddp_eval_accuracy_ratio": accuracy})

    @suppress_errors
    def checkpoint_saved(self, step: int, seconds: float, blocking_seconds: float, size_bytes: int) -> None:
        """Record a checkpoint that became durable."""
        self._file.add({cell(Metric.CHECKPOINT_SAVES, "success"): 1.0})
        self._file.add({"ddp_checkpoint_save_seconds_total": seconds})
        self._file.add({"ddp_checkpoint_blocking_seconds_total": blocking_seconds})
        self._file.put({"ddp_checkpoint_last_step": step, "ddp_checkpoint_size_bytes": size_bytes})
        self._file.put({"ddp_checkpoint_last_success_timestamp_seconds": self._clock()})

    @suppress_errors
    def account(self, account: JobAccount) -> None:
        """Record the time account of the whole job."""
        states = (cell(Metric.JOB_TIME, state) for state in JobTime)
        with self._file.atomic_update():
            self._file.put(dict(zip(states, account.seconds, strict=True)))
            self._file.put({Metric.JOB_START: account.started})
            self._file.put({Metric.LOST_STEPS: account.lost_steps, Metric.LOST_PROGRESS: account.lost_seconds})

    def take_user_values(self) -> Mapping[str, float]:
        """Return the values that the script has reported by ``attach.log()`` since the last call, by name."""
        return self.user_values.take()


_living: Final[weakref.WeakSet[MmapRankRecorder]] = weakref.WeakSet()


def _detach_all() -> None:
    for recorder in list(_living):
        recorder.detach()


# A forked process, such as a data loader worker, must not write to its parent's metrics file.
os.register_at_fork(after_in_child=_detach_all)
