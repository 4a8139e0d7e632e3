"""Training state that outlives worker groups, its form in checkpoints, and its restoration.

:class:`TrainState` is built by :func:`ddp_trainer.train.loop.group_components.build_state`. It is saved through
:class:`~ddp_trainer.train.checkpoint.checkpoint_manager.CheckpointManager`.

How to add a field to the checkpoint:

1. Here: an attribute of :class:`TrainState`, an item of :meth:`TrainState.replicated`, and a line in
   :meth:`TrainState.load_replicated` with a default for earlier checkpoints. All forms of a checkpoint then have it,
   and ranks that receive their state from a peer. Formats and manifest do not change.
2. A value of the steps is set in ``commit_step`` of ``train/step.py`` from the decision, which is equal on all ranks. A
   rollback loads the checkpoint's value.
3. Test in ``tests/unit/ddp_trainer/train/test_run.py`` that a resumed run has it; its ``Journal`` has the losses of all
   steps. No page lists the fields. ``CHANGELOG.md`` gets a line if users see the field.
"""

from __future__ import annotations

import copy
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from ddp_trainer.common.time_classes import Phase, Section
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, unpack
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager, InPieces
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.sharded_writer import ShardedWriter, writes_sharded_checkpoint
from ddp_trainer.train.checkpoint.snapshot import state_bytes
from ddp_trainer.train.checkpoint.summary import Summary
from ddp_trainer.train.config.option_values import Level
from ddp_trainer.train.data.batch_plan import BatchPlan, SampleTracker
from ddp_trainer.train.data.batch_reader import sha256
from ddp_trainer.train.data.keyed_rng import ALGORITHM
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
from ddp_trainer.train.loop.run_context import RunContext
from ddp_trainer.train.optim.optimizer import OptimizerWrapper
from ddp_trainer.train.transforms.model_transforms import Losses

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState


class RestoreResult(NamedTuple):
    """Parts of a loaded state that the caller needs."""

    finished: Summary | None
    """The summary, if the run is finished; else None."""
    data: dict[str, Any] | None
    """State of the feed; None if it has none."""


@dataclass(slots=True, kw_only=True, eq=False)
class TrainState:
    """State that this process keeps from one worker group to the next; the model is in the context."""

    context: RunContext
    history: GoodputTracker
    plan: BatchPlan
    tracker: SampleTracker
    losses: Losses
    optimizer: OptimizerWrapper
    sharded: ShardedState | None = None
    """The distributed state, if no rank holds the whole model; else None."""
    shard_writer: ShardedWriter | None = None
    """Writer of this rank's shards; None if one rank writes the whole, for example if each pod has its own disk."""
    step: int = 0
    """Number of committed global steps."""
    logger_run_id: str = ""
    """Id of the run in W&B and MLflow: of the job that started the run, also after a resume by another job."""

    def release(self) -> None:
        """Drop optimizer and shards; only the data position remains, for a summary."""
        del self.losses, self.optimizer, self.sharded, self.shard_writer

    def save(self, saver: CheckpointManager, summary: Summary | None, data: dict[str, Any] | None) -> None:
        """Start to save the state; see :meth:`state_dict` and :meth:`CheckpointManager.save`.

        Args:
            saver: Manager of the checkpoints.
            summary: Summary of the run at its end; None before.
            data: State of the data set or stream; None if it has none.

        Raises:
            StaleGeneration: A newer worker group owns the directory.
        """
        timer = self.context.timer
        timer.end_phase(Phase.OTHER)
        timer.enter(Section.CHECKPOINT)
        saver.save(
            self.step,
            lambda: self.state_dict(summary, data, keeps=saver.writes),
            self.manifest,
            together=self.sharded is not None,
            in_pieces=self.in_pieces(summary, data),
        )
        timer.end_phase(Phase.CHECKPOINT)

    def state_dict(
        self, summary: Summary | None = None, data: dict[str, Any] | None = None, *, keeps: bool = True
    ) -> dict[str, Any]:
        """Return the whole state of the run, in tensors and plain values only.

        Args:
            summary: The summary, if the run is finished.
            data: State of the feed.
            keeps: If the state is distributed over ranks, whether this rank receives the gathered whole.
        """
        own = {"model": self.context.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        gathered = own if self.sharded is None else self.sharded.gather_state(own, keep=keeps)
        return {**gathered, **self.replicated(summary, data)}

    def in_pieces(self, summary: Summary | None = None, data: dict[str, Any] | None = None) -> InPieces | None:
        """Return how each rank writes its part of the checkpoint; None if one rank writes the whole."""
        if self.shard_writer is None:
            return None
        return InPieces(self.shard_writer, lambda: self._local_state_dict(summary, data))

    def reserve_memory(self, saver: CheckpointManager) -> None:
        """Reserve the memory that a save copies to on this rank, for the whole state or for a part of it."""
        in_pieces = self.shard_writer is not None
        is_part = self.shard_writer is not None and self.shard_writer.writes
        saver.reserve(state_bytes(self.context.model, self.plan.samples, here=in_pieces), of_part=is_part)

    def _local_state_dict(self, summary: Summary | None, data: dict[str, Any] | None) -> dict[str, Any]:
        """Return this rank's shards; rank 0 adds everything that is not sharded."""
        from ddp_trainer.train.checkpoint.dcp_reader import local_state_dict  # noqa: PLC0415 - a second of imports; only for distributed states

        assert self.sharded is not None  # noqa: S101 - only distributed states have parts
        pieces = local_state_dict(self.context.model, self.optimizer.optimizer, self.sharded)
        if self.context.process.group.rank:
            return pieces
        optimizer = {**self.optimizer.state_dict(), "state": {}}
        return {"pieces": pieces, "optimizer": optimizer, **self.replicated(summary, data)}

    def replicated(self, summary: Summary | None = None, data: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the state besides weights and optimizer, which is whole on every rank."""
        context, config = self.context, self.context.config
        return {
            "loss_scale": self.optimizer.loss_scale_state(),
            "scheduler": self.optimizer.scheduler_state(),
            "guard": context.guard.state_dict(),
            # The learning rate is a function of the step, and random streams are keyed: these are information only.
            "schedule": {"name": str(config.schedule), "peak": config.learning_rate},
            "random": {"algorithm": ALGORITHM, "keyed_by": ["seed", "stream", "step", "slice"]},
            "cursor": {"seed": config.seed, "epoch": self.plan.epoch_of(self.step), "step": self.step},
            "ledger": self.tracker.state_dict(),
            "data": data,
            "watch": context.watch.state_dict(),
            "computed_on": self._computed_on(),
            "time": self.history.state_dict(),
            "logger_run_id": self.logger_run_id,
            "summary": None if summary is None else summary.to_dict(),
        }

    def manifest(self) -> Manifest:
        """Return the manifest of the checkpoint, without digest and size of the payload."""
        env = self.context.process.env
        return Manifest(
            identity=self.context.identity,
            step=self.step,
            epoch=self.plan.epoch_of(self.step),
            batch_slices=self.plan.batch_slices,
            generation=env.generation,
            run_id=env.run_id,
            world_size=self.context.process.group.world_size,
            sha256="",
            size_bytes=0,
            written_at=time.time(),
            torch=torch.__version__,
            metrics=self.context.watch.metrics_after(self.step),
        )

    def load_checkpoint(self, checkpoint: Checkpoint) -> RestoreResult:
        """Restore all components from a checkpoint."""
        return self.load_replicated(self._load_weights(checkpoint))

    def load_replicated(self, state: dict[str, Any], *, knows_time: bool = False) -> RestoreResult:
        """Restore everything besides weights and optimizer.

        Args:
            state: The result of :meth:`replicated`.
            knows_time: This rank took part in the steps, so its own account of time is current and stays.
        """
        context = self.context
        self.optimizer.load_loss_scale(state.get("loss_scale"))
        self.optimizer.load_scheduler(state.get("scheduler"))
        context.guard.load_state_dict(state.get("guard"))
        self.tracker.load_state_dict(state["ledger"])
        if "watch" in state:
            context.watch.load_state_dict(state["watch"])
        self._report_hardware_change(state.get("computed_on", ""))
        if not knows_time:
            self.history.load_state_dict(state["time"])
        self.logger_run_id = state.get("logger_run_id") or self.logger_run_id
        self.step = state["cursor"]["step"]
        summary, data = state["summary"], state.get("data")
        if summary is None or not (self.step >= self.plan.total_steps or context.watch.should_stop):
            return RestoreResult(None, data)
        return RestoreResult(Summary.from_dict(summary), data)

    def _load_weights(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Restore model and optimizer, and return the state that contained them."""
        model, optimizer, sharded = self.context.model, self.optimizer, self.sharded
        if sharded is not None and checkpoint.directory is not None and checkpoint.is_sharded:
            from ddp_trainer.train.checkpoint.dcp_reader import take_pieces  # noqa: PLC0415 - as above

            state = take_pieces(checkpoint.directory, checkpoint.manifest, model, optimizer.optimizer)
            optimizer.load_state_dict(state["optimizer"])
            return state
        if sharded is None:
            return load_full_state(checkpoint, model, optimizer)
        state = unpack(checkpoint)
        sharded.load_weights(model, state["model"])
        optimizer.load_state_dict(sharded.optimizer_state(optimizer.optimizer, state["optimizer"]))
        return state if checkpoint.directory is None else _unmapped(state, optimizer)

    @property
    def _is_exact(self) -> bool:
        return self.context.config.level is Level.EXACT

    def digest(self) -> str | None:
        """Return the SHA-256 of weights and optimizer; None unless the level is ``exact``."""
        if not self._is_exact:
            return None
        return sha256([self.context.model.state_dict(), self.optimizer.state_dict()])

    def _computed_on(self) -> str:
        """Return the hardware on which the bits depend; empty unless the level is ``exact``."""
        if not self._is_exact:
            return ""
        from ddp_trainer.train.exact.tree_allreduce import hardware_id  # noqa: PLC0415 - few runs need it

        return hardware_id(self.context.process.group.device)

    def _report_hardware_change(self, before: str) -> None:
        if self._is_exact:
            from ddp_trainer.train.exact.tree_allreduce import change  # noqa: PLC0415 - few runs need it

            if (sentence := change(before, self._computed_on())) is not None:
                self.context.process.progress.log_message(sentence)


def load_full_state(checkpoint: Checkpoint, model: nn.Module, optimizer: OptimizerWrapper) -> dict[str, Any]:
    """Restore a model and its optimizer that are whole on this rank, and return the state that contained them."""
    thread = None
    if checkpoint.directory is not None and not checkpoint.is_verified:
        thread = ThreadPoolExecutor(1, "ddp-moments")
        thread.submit(int)  # after the load, the start of a thread takes as long as the load
    state = unpack(checkpoint)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state if checkpoint.directory is None else _unmapped(state, optimizer, thread)


def _unmapped(
    state: dict[str, Any], optimizer: OptimizerWrapper, thread: ThreadPoolExecutor | None = None
) -> dict[str, Any]:
    """Return the state besides weights and optimizer, and let nothing refer to the mapped file.

    On a network file system, a read fails once the file is pruned. No checkpoint is pruned before the next save, which
    waits for copies in the background.
    """
    optimizer.copy_host_tensors(thread)
    return copy.deepcopy({name: value for name, value in state.items() if name not in {"model", "optimizer"}})


def shard_writer(context: RunContext, sharded: ShardedState | None) -> ShardedWriter | None:
    """Return the writer of this rank's shards; None if one rank writes the whole."""
    config = context.config
    if sharded is None or not writes_sharded_checkpoint(config):
        return None
    return ShardedWriter(sharded.mesh.layout, context.process.group, config.timeout_seconds)
