"""Collection of a run's state for checkpoints, and its restoration.

:class:`CheckpointState` collects the state from the components of a run, and gives it back to them. It writes through
:class:`~ddp_trainer.train.checkpoint.checkpoint_manager.CheckpointManager`.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch

from ddp_trainer.common.constants import Phase, Section
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, copied, unpack
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager, InPieces
from ddp_trainer.train.checkpoint.manifest import Manifest
from ddp_trainer.train.checkpoint.sharded_writer import ShardedWriter, write_together
from ddp_trainer.train.checkpoint.snapshot import state_bytes
from ddp_trainer.train.checkpoint.summary import Summary
from ddp_trainer.train.config.options import Level
from ddp_trainer.train.loop.build_components import TrainState
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
from ddp_trainer.train.loop.run_context import RunContext
from ddp_trainer.train.utils.splitmix import ALGORITHM


class Restored(NamedTuple):
    """Part of a restored state that the caller needs."""

    step: int
    """Number of committed global steps."""
    finished: Summary | None
    """The summary, if the run is finished; else None."""
    data: dict[str, Any] | None
    """State of the feed; None if it has none."""


class CheckpointState:
    """State of a run, held by its components."""

    def __init__(self, ground: RunContext, kept: TrainState, history: GoodputTracker, *, keeps: bool = True) -> None:
        """Bind the components.

        Args:
            ground: The context of the run.
            kept: Plan, sample account and optimizer.
            history: The account of time and lost steps.
            keeps: If the state is distributed over ranks, whether this rank receives the gathered whole.
        """
        self._keeps = keeps
        self._ground = ground
        self._kept = kept
        self._history = history
        self._is_exact = ground.config.level is Level.EXACT
        self._together = _together(ground, kept)

    def save(self, saver: CheckpointManager, step: int, summary: Summary | None, data: dict[str, Any] | None) -> None:
        """Start to save the state after ``step`` steps; see :meth:`take` and :meth:`CheckpointManager.save`.

        Raises:
            StaleGeneration: A newer worker group owns the directory.
        """
        phases = self._ground.phases
        phases.lap(Phase.OTHER)
        phases.enter(Section.CHECKPOINT)
        saver.save(
            step,
            lambda: self.take(step, summary, data),
            lambda: self.manifest(step),
            together=self.is_spread,
            in_pieces=self.in_pieces(step, summary, data),
        )
        phases.lap(Phase.CHECKPOINT)

    def take(self, step: int, summary: Summary | None, data: dict[str, Any] | None) -> dict[str, Any]:
        """Return the whole state of the run, in tensors and plain values only.

        Args:
            step: Number of committed steps.
            summary: The summary, if the run is finished.
            data: State of the feed.
        """
        return {**self._of_model(), **self.beside(step, summary, data)}

    def in_pieces(self, step: int, summary: Summary | None, data: dict[str, Any] | None) -> InPieces | None:
        """Return how each rank writes its part of the checkpoint; None if one rank writes the whole."""
        if self._together is None:
            return None
        return InPieces(self._together, lambda: self._part(step, summary, data))

    def reserved(self) -> tuple[int, bool]:
        """Return the bytes that a save copies on this rank, and whether they are only a part of the state."""
        in_pieces, samples = self._together is not None, self._kept.plan.samples
        is_part = self._together is not None and self._together.writes
        return state_bytes(self._ground.model, samples, here=in_pieces), is_part

    def _part(self, step: int, summary: Summary | None, data: dict[str, Any] | None) -> dict[str, Any]:
        """Return this rank's shards; rank 0 adds everything that is not sharded."""
        from ddp_trainer.train.checkpoint.dcp_chunks import own_part  # noqa: PLC0415 - a second of imports; only for distributed states

        spread, optimization = self._kept.spread, self._kept.optimization
        assert spread is not None  # noqa: S101 - only distributed states have parts
        pieces = own_part(self._ground.model, optimization.optimizer, spread)
        if self._ground.around.group.rank:
            return pieces
        return {
            "pieces": pieces,
            "optimizer": {**optimization.state_dict(), "state": {}},
            **self.beside(step, summary, data),
        }

    def beside(self, step: int, summary: Summary | None, data: dict[str, Any] | None) -> dict[str, Any]:
        """Return the state besides weights and optimizer, which is whole on every rank."""
        ground, kept = self._ground, self._kept
        config = ground.config
        return {
            "loss_scale": kept.optimization.loss_scale_state(),
            "guard": ground.guard.state_dict(),
            # The learning rate is a function of the step, and random streams are keyed: these are information only.
            "schedule": {"name": str(config.schedule), "peak": config.learning_rate},
            "random": {"algorithm": ALGORITHM, "keyed_by": ["seed", "stream", "step", "shard"]},
            "cursor": {"seed": config.seed, "epoch": kept.plan.epoch_of(step), "step": step},
            "ledger": kept.ledger.state_dict(),
            "data": data,
            "watch": ground.watch.state_dict(),
            "computed_on": self._computed_on(),
            "time": self._history.state_dict(),
            "summary": None if summary is None else summary.to_dict(),
        }

    @property
    def is_spread(self) -> bool:
        """True if the state is distributed, so that all ranks must take it together."""
        return self._kept.spread is not None

    def _of_model(self) -> dict[str, Any]:
        own = {"model": self._ground.model.state_dict(), "optimizer": self._kept.optimization.state_dict()}
        spread = self._kept.spread
        return own if spread is None else spread.whole(own, keep=self._keeps)

    def manifest(self, step: int) -> Manifest:
        """Return the manifest of the checkpoint, without digest and size of the payload."""
        env, plan = self._ground.around.env, self._kept.plan
        return Manifest(
            identity=self._ground.identity,
            step=step,
            epoch=plan.epoch_of(step),
            shards=plan.shards,
            generation=env.generation,
            run_id=env.run_id,
            world_size=self._ground.around.group.world_size,
            sha256="",
            size_bytes=0,
            written_at=time.time(),
            torch=torch.__version__,
            metrics=self._ground.watch.metrics_after(step),
        )

    def copy(self, step: int) -> Checkpoint:
        """Return the state after ``step`` steps as a checkpoint in memory, for ranks that lack it."""
        return copied(self.take(step, None, None), self.manifest(step))

    def give_back(self, checkpoint: Checkpoint) -> Restored:
        """Restore all components from a checkpoint."""
        return self.give_beside(self._give_back_weights(checkpoint))

    def give_beside(self, state: dict[str, Any], *, knows_time: bool = False) -> Restored:
        """Restore everything besides weights and optimizer.

        Args:
            state: The result of :meth:`beside`.
            knows_time: This rank took part in the steps, so its own account of time is current and stays.
        """
        ground, kept = self._ground, self._kept
        kept.optimization.load_loss_scale(state.get("loss_scale"))
        ground.guard.load_state_dict(state.get("guard"))
        kept.ledger.load_state_dict(state["ledger"])
        if "watch" in state:
            ground.watch.load_state_dict(state["watch"])
        self._tell_change(state.get("computed_on", ""))
        if not knows_time:
            self._history.load_state_dict(state["time"])
        step, summary, data = state["cursor"]["step"], state["summary"], state.get("data")
        if summary is None or not (step >= kept.plan.total_steps or ground.watch.has_waited_enough):
            return Restored(step, None, data)
        return Restored(step, Summary.from_dict(summary), data)

    def _give_back_weights(self, checkpoint: Checkpoint) -> dict[str, Any]:
        """Restore model and optimizer, and return the state that contained them."""
        model, optimization, spread = self._ground.model, self._kept.optimization, self._kept.spread
        if spread is not None and checkpoint.directory is not None:
            from ddp_trainer.train.checkpoint.dcp_reader import take_pieces  # noqa: PLC0415 - as above

            state = take_pieces(checkpoint.directory, checkpoint.manifest, model, optimization.optimizer)
            optimization.load_state_dict(state["optimizer"])
            return state
        state = unpack(checkpoint)
        if spread is None:
            model.load_state_dict(state["model"])
            optimization.load_state_dict(state["optimizer"])
        else:
            spread.load_weights(model, state["model"])
            optimization.load_state_dict(spread.optimizer_state(optimization.optimizer, state["optimizer"]))
        return state

    def digest(self) -> str | None:
        """Return the SHA-256 of weights and optimizer; None unless the level is ``exact``."""
        if not self._is_exact:
            return None
        from ddp_trainer.train.exact.digest import sha256  # noqa: PLC0415 - few runs need it

        return sha256([self._ground.model.state_dict(), self._kept.optimization.state_dict()])

    def _computed_on(self) -> str:
        """Return the hardware on which the bits depend; empty unless the level is ``exact``."""
        if not self._is_exact:
            return ""
        from ddp_trainer.train.exact.hardware_check import hardware_id  # noqa: PLC0415 - few runs need it

        return hardware_id(self._ground.around.group.device)

    def _tell_change(self, before: str) -> None:
        if self._is_exact:
            from ddp_trainer.train.exact.hardware_check import change  # noqa: PLC0415 - few runs need it

            if (told := change(before, self._computed_on())) is not None:
                self._ground.around.progress.note(told)


def _together(ground: RunContext, kept: TrainState) -> ShardedWriter | None:
    """Return the sharded writer; None if one rank writes the whole, for example if each pod has its own disk."""
    config, spread = ground.config, kept.spread
    if spread is None or not write_together(config):
        return None
    return ShardedWriter(spread.mesh.layout, ground.around.group, config.timeout_seconds)
