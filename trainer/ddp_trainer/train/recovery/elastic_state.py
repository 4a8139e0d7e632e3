"""Training state that a process holds from one worker group to the next.

:class:`ElasticState` agrees with all ranks on the state to resume from: one that ranks hold, a checkpoint, or a new
one. It is used by :class:`~ddp_trainer.train.trainer.Trainer`. Parts of distributed models are exchanged through
:mod:`ddp_trainer.train.recovery.peer_recovery`.
"""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
from typing import Any

from torch import nn

from ddp_trainer.common.metric_names import Metric
from ddp_trainer.train.checkpoint.checkpoint_broadcast import (
    Receive,
    ResumeSource,
    broadcast_latest_checkpoint,
    find_state,
    progress_key,
)
from ddp_trainer.train.checkpoint.checkpoint_factory import make_progress_file
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager
from ddp_trainer.train.checkpoint.checkpoint_verify import BackgroundVerification
from ddp_trainer.train.checkpoint.manifest import Manifest, check_same_run
from ddp_trainer.train.checkpoint.sharded_writer import writes_sharded_checkpoint
from ddp_trainer.train.checkpoint.weights_io import initialize
from ddp_trainer.train.config.config import layout_of
from ddp_trainer.train.data.sample_order import order_of_new_run
from ddp_trainer.train.deferred_init.skip_init import is_deferred
from ddp_trainer.train.evaluation.early_stopping import EvaluationTracker
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
from ddp_trainer.train.loop.group_components import build_state
from ddp_trainer.train.loop.nonfinite_policy import Guard
from ddp_trainer.train.loop.run_context import RunContext, draw, draw_without_weights
from ddp_trainer.train.loop.train_state import RestoreResult, TrainState
from ddp_trainer.train.loop.user_loop import UserTask
from ddp_trainer.train.parallel.strategy import send_from_first
from ddp_trainer.train.recovery.group_transition import select_active_ranks
from ddp_trainer.train.recovery.peer_recovery import LocalState, capture_state, recover_state, restore_state
from ddp_trainer.train.utils.errors import NonFiniteLoss


class ElasticState:
    """Training state of this process; it may not be used between the end of a group and :meth:`resume`."""

    state: TrainState

    def __init__(self, context: RunContext, history: GoodputTracker) -> None:
        """Start without a state."""
        self._context = context
        self._history = history
        self._local_state: LocalState | None = None
        self._lacks_model = False
        self._lacks_weights = not context.has_weights
        """True if the weights were never filled, or overwritten in part, by a transfer that may have failed."""
        self.is_complete = False
        """True if this process holds the whole state of its rank, ready to train."""
        self.verification: BackgroundVerification | None = None
        """Verification of the checkpoint from which the state comes. Until it has ended, the state must not leave the
        group; None if no doubt is left."""

    def confirm(self, *, wait: bool) -> None:
        """Agree with all ranks that the checkpoint is not damaged; every rank must call it.

        Args:
            wait: Wait until it is verified. Without, :attr:`verification` may still be set afterwards.

        Raises:
            GroupEnded: The checkpoint is damaged.
        """
        if self.verification is None:
            return
        if wait:
            self.state.optimizer.wait_for_copies()  # of the mapped file, which the next save may prune
        if self.verification.agree(wait=wait):
            self.verification = None

    def capture(self, *, in_doubt: bool) -> None:
        """Extract the shards of a distributed model as plain tensors, because DTensors are bound to the group.

        A state that may come from a damaged checkpoint is dropped.
        """
        if self.is_complete and self.verification is None:
            self._local_state = capture_state(self.state, in_doubt=in_doubt)
        self._release()

    def _release(self) -> None:
        """Drop the model and the optimizer that this rank holds."""
        if self.is_complete:
            self.is_complete = False
            self.state.release()
        self.verification = None
        # The next model is initialized later, when the other ranks do not wait for this process to leave.
        self._context.model, self._lacks_model = nn.Identity(), True

    def resume(self, saver: CheckpointManager) -> RestoreResult | None:
        """Agree with all ranks on the state to resume from, and load it: own, a peer's, a checkpoint, or new.

        It also counts the lost steps.

        Returns:
            What was loaded from a peer or a checkpoint; None if nothing was loaded or this rank is a spare.
        """
        context, history = self._context, self._history
        config, process, group = context.config, context.process, context.process.group
        began = time.perf_counter()
        history.begin_restore()
        held = None
        if self.is_complete:
            held = progress_key(self.state.step, is_evaluated=context.watch.has_seen(self.state.step))
        taken = recover_state(context, self._local_state, self._require_same_run) if config.is_model_sharded else None
        if taken is None:
            self._local_state = None  # void for all ranks; a later group must not receive it
            saver.open(group if config.is_model_sharded else None)
            newest = partial(self._latest_checkpoint, saver, verified=not self._can_drop_state())
            demand = self._require_same_run
            receive = Receive(is_wanted=self._has_place(), targets=self._targets)
            checkpoint, is_durable = find_state(
                group, held, own=self._local_checkpoint, receive=receive, newest=newest, demand=demand
            )
        else:
            saver.open(None)
            checkpoint, is_durable = ResumeSource(taken.beside)
        if config.parallel is not None:
            select_active_ranks(config.parallel, group, process.progress.log_message)
        if group.is_spare:
            self._local_state = None  # the others train on; if they are lost later, a checkpoint is newer than this
            self._release()
            return None
        if taken is not None:
            self._local_state = taken
        self._set_order(None if checkpoint is None else checkpoint.manifest)
        progress_file = make_progress_file(config, process.env, context.identity, process.progress.warn_rank)
        history.load(progress_file, process.recorder, group, process.began, process.env)
        if not self.is_complete:
            self._build(checkpoint, is_void=taken is None)
        history.go_on_from(self.state.step if checkpoint is None else checkpoint.manifest.step)
        restored = None if checkpoint is None else self._load(checkpoint, taken)
        is_loaded = restored is not None and (taken is None or taken.was_behind)
        if restored is not None:
            saver.saved_step = self.state.step if is_durable else None
        if is_loaded:
            process.recorder.add(Metric.CHECKPOINT_LOAD_SECONDS, time.perf_counter() - began)
        elif restored is None and held is None:
            saver.saved_step = None  # a damaged checkpoint may have been loaded before
            self._initialize()
        self._record_agreement(has_state=restored is not None or held is not None)
        self.state.logger_run_id = self.state.logger_run_id or process.env.run_id or history.run_name
        group.confirm()
        self.is_complete, self._lacks_weights, self._local_state = True, False, None
        history.end_restore(loaded=is_loaded)
        return restored

    def _record_agreement(self, *, has_state: bool) -> None:
        """Record on all ranks whether each of them has the state of the run, not only its own first one."""
        if not self._context.config.is_model_sharded:
            group = self._context.process.group
            group.has_agreed_state = all(group.gather(int(has_state)))

    def _set_order(self, stored: Manifest | None) -> None:
        """Order the samples as the run did so far, or as a new run does if nothing is ``stored``."""
        if self.is_complete:
            return
        identity = self._context.identity
        order = order_of_new_run(identity.samples) if stored is None else stored.identity.order
        self._context.identity = replace(identity, order=order)

    def _build(self, checkpoint: Checkpoint | None, *, is_void: bool) -> None:
        """Build a state to load into; if no rank keeps its state (``is_void``), also reset evaluation and guard."""
        context, config = self._context, self._context.config
        if self._lacks_model or (self._lacks_weights and checkpoint is None):
            context.model = draw(config, context.task, context.process)
            self._lacks_model = self._lacks_weights = False
        if is_void:
            context.watch = EvaluationTracker(config)
            context.guard = Guard(config, context.process.progress.log_message)
        stored_batch_slices = None if checkpoint is None else checkpoint.manifest.batch_slices
        loads = checkpoint is not None or config.init_from is not None
        self.state = build_state(context, self._history, stored_batch_slices, loads=loads)

    def _load(self, checkpoint: Checkpoint, taken: LocalState | None) -> RestoreResult:
        if taken is not None:
            return restore_state(taken, self.state)
        if not checkpoint.is_verified:
            process = self._context.process
            self.verification = BackgroundVerification(checkpoint, process.group, process.progress.warn_rank)
        restored = self.state.load_checkpoint(checkpoint)
        if self.verification is not None:
            self.verification.start()
        return restored

    def _initialize(self) -> None:
        """Start with the weights of the file in ``--init-from``; a user-written loop with those of rank 0."""
        context, state, config = self._context, self.state, self._context.config
        model, group = context.model, context.process.group
        if config.init_from is not None:
            with_optimizer = config.init_optimizer
            initialize(model, state.optimizer, config.init_from, state.sharded, with_optimizer=with_optimizer)
        elif isinstance(context.task, UserTask) and group.world_size > 1:
            send_from_first([*model.parameters(), *model.buffers()], group)

    def roll_back(self, saver: CheckpointManager, reason: str) -> RestoreResult:
        """Load the newest checkpoint of any rank in the same group.

        Raises:
            NonFiniteLoss: There is no checkpoint; ``reason`` is the cause of the rollback.
        """
        saver.wait_for_save()
        found = broadcast_latest_checkpoint(
            self._latest_checkpoint(saver), self._context.process.group, self._require_same_run
        )
        if found is None:
            raise NonFiniteLoss(reason, hint="There is no checkpoint to roll back to: check why none was saved.")
        restored = self.state.load_checkpoint(found)
        self.verification = None
        saver.saved_step = self.state.step
        return restored

    def _local_checkpoint(self) -> Checkpoint:
        return Checkpoint(self.state.manifest(), state=self.state.state_dict())

    def _has_place(self) -> bool:
        """Return True if this rank trains in the group, and is not a spare."""
        parallel, group = self._context.config.parallel, self._context.process.group
        return parallel is None or group.rank < layout_of(parallel, group.world_size).world

    def _targets(self) -> dict[str, Any]:
        """Return the weights to receive a state into, which may be lost if the transfer fails.

        There are none if the next group could need this rank's state, if the weights cannot be drawn again, or if the
        model is cut later.
        """
        context = self._context
        if self.is_complete or isinstance(context.task, UserTask) or context.config.is_model_sharded:
            return {}
        if self._lacks_model:
            context.model, _ = draw_without_weights(context.config, context.task, context.process)
            self._lacks_model = False
        if not is_deferred(context.model):
            context.model.to(context.process.group.device)
        self._lacks_weights = True
        return {"model": context.model.state_dict()}

    def _can_drop_state(self) -> bool:
        """Return True if this process can resume once more, from another checkpoint or from none."""
        context = self._context
        is_own_model = context.config.is_model_sharded or isinstance(context.task, UserTask)
        return context.process.control is not None and context.can_join_next_group and not is_own_model

    def _latest_checkpoint(self, saver: CheckpointManager, *, verified: bool = True) -> Checkpoint | None:
        group = self._context.process.group if writes_sharded_checkpoint(self._context.config) else None
        return saver.latest_checkpoint(group, verified=verified)

    def _require_same_run(self, manifest: Manifest) -> None:
        config = self._context.config
        check_same_run(
            manifest, self._context.identity, where=f"in {config.checkpoint_dir}", batch_slices=config.batch_slices
        )
