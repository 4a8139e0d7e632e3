"""What a checkpoint holds of a run: taken from its parts, and given back to them."""

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
    """What a state says besides what its parts took back."""

    step: int
    """Committed global steps."""
    finished: Summary | None
    """The summary, if it is the state of a finished run."""
    data: dict[str, Any] | None
    """For the feed."""


class State:
    """The state of a run, spread over its parts."""

    def __init__(self, ground: RunContext, kept: TrainState, history: GoodputTracker, *, keeps: bool = True) -> None:
        """``keeps``: of a state that is spread over ranks, this rank takes the whole."""
        self._keeps = keeps
        self._ground = ground
        self._kept = kept
        self._history = history
        self._is_exact = ground.config.level is Level.EXACT
        self._together = _together(ground, kept)

    def save(self, saver: CheckpointManager, step: int, summary: Summary | None, data: dict[str, Any] | None) -> None:
        """Begin to save it as it is after so many steps; see :meth:`take` and :meth:`CheckpointManager.save`.

        Raises:
            StaleGeneration: a newer worker group has the directory.
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
        """All that a run is made of after so many steps; tensors and plain values only. ``data``: the feed's part."""
        return {**self._of_model(), **self.beside(step, summary, data)}

    def in_pieces(self, step: int, summary: Summary | None, data: dict[str, Any] | None) -> InPieces | None:
        """How this state is saved where each rank writes what it has; None where one writes the whole."""
        if self._together is None:
            return None
        return InPieces(self._together, lambda: self._part(step, summary, data))

    def reserved(self) -> tuple[int, bool]:
        """Bytes that a save copies on this rank, and whether they are a part of the state."""
        in_pieces, samples = self._together is not None, self._kept.plan.samples
        is_part = self._together is not None and self._together.writes
        return state_bytes(self._ground.model, samples, here=in_pieces), is_part

    def _part(self, step: int, summary: Summary | None, data: dict[str, Any] | None) -> dict[str, Any]:
        """This rank's pieces; with the first rank's, all that is not in pieces."""
        from ddp_trainer.train.checkpoint.dcp_chunks import own_part  # noqa: PLC0415 - a second of imports; of spread states alone

        spread, optimization = self._kept.spread, self._kept.optimization
        assert spread is not None  # noqa: S101 - else there are no parts
        pieces = own_part(self._ground.model, optimization.optimizer, spread)
        if self._ground.around.group.rank:
            return pieces
        return {
            "pieces": pieces,
            "optimizer": {**optimization.state_dict(), "state": {}},
            **self.beside(step, summary, data),
        }

    def beside(self, step: int, summary: Summary | None, data: dict[str, Any] | None) -> dict[str, Any]:
        """What stands beside weights and optimizer, and is whole on every rank."""
        ground, kept = self._ground, self._kept
        config = ground.config
        return {
            "loss_scale": kept.optimization.loss_scale_state(),
            "guard": ground.guard.state_dict(),
            # The learning rate is a function of the step, and random streams are keyed: these are for the reader.
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
        """Whether all ranks must take it at the same time."""
        return self._kept.spread is not None

    def _of_model(self) -> dict[str, Any]:
        own = {"model": self._ground.model.state_dict(), "optimizer": self._kept.optimization.state_dict()}
        spread = self._kept.spread
        return own if spread is None else spread.whole(own, keep=self._keeps)

    def manifest(self, step: int) -> Manifest:
        """What will stand beside the payload, but for the digest and size of that."""
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
        """The state after so many steps as a checkpoint in memory, for ranks that do not have it."""
        return copied(self.take(step, None, None), self.manifest(step))

    def give_back(self, checkpoint: Checkpoint) -> Restored:
        """Go on from a checkpoint."""
        return self.give_beside(self._give_back_weights(checkpoint))

    def give_beside(self, state: dict[str, Any], *, knows_time: bool = False) -> Restored:
        """Go on from what :meth:`beside` gave; a rank that was there ``knows_time`` already."""
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
        """Model and optimizer; the state that they were in."""
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
        """SHA-256 of weights and optimizer; None where no bits are promised."""
        if not self._is_exact:
            return None
        from ddp_trainer.train.exact.digest import sha256  # noqa: PLC0415 - few runs need it

        return sha256([self._ground.model.state_dict(), self._kept.optimization.state_dict()])

    def _computed_on(self) -> str:
        """What the bits depend on besides the run; empty where none are promised."""
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
    """How ranks write one checkpoint together; None where one writes the whole, as where pods have a disk each."""
    config, spread = ground.config, kept.spread
    if spread is None or not write_together(config):
        return None
    return ShardedWriter(spread.mesh.layout, ground.around.group, config.timeout_seconds)
