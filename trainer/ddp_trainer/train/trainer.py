"""Sequence of a run from its flags to its summary: build, resume, step, save, evaluate.

:class:`Trainer` runs the sequence in each worker group. Components come from :mod:`ddp_trainer.train.loop.run_context`
and :mod:`ddp_trainer.train.loop.build_components`, the checkpointed state from
:mod:`ddp_trainer.train.loop.checkpoint_state`. Events go to :mod:`ddp_trainer.train.loop.callbacks`, the summary is
built in :mod:`ddp_trainer.train.loop.run_result`.
"""

from __future__ import annotations

import gc
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import nn

from ddp_trainer.common.constants import Exit, Phase, Section
from ddp_trainer.train.checkpoint.checkpoint_broadcast import newest_of_all
from ddp_trainer.train.checkpoint.checkpoint_factory import make_odometer, make_saver, renew_saver
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager
from ddp_trainer.train.checkpoint.manifest import Manifest, demand_same
from ddp_trainer.train.checkpoint.resume_source import ResumeSource, find_state, progress_key
from ddp_trainer.train.checkpoint.sharded_writer import write_together
from ddp_trainer.train.checkpoint.summary import Result, Summary
from ddp_trainer.train.checkpoint.weights_io import initialize
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_rules import check_shard
from ddp_trainer.train.config.options import OnNonFinite
from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.data.sample_tracker import SampleTracker
from ddp_trainer.train.data.task import Task
from ddp_trainer.train.evaluation.early_stopping import Watch
from ddp_trainer.train.loop.build_components import GroupComponents, TrainState, build_components, build_state
from ddp_trainer.train.loop.callbacks import CallbackList
from ddp_trainer.train.loop.checkpoint_state import CheckpointState, Restored
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
from ddp_trainer.train.loop.nonfinite_policy import Guard, RollBack
from ddp_trainer.train.loop.process_context import ProcessContext
from ddp_trainer.train.loop.run_context import build_context, draw
from ddp_trainer.train.loop.run_result import Outcome, summarize
from ddp_trainer.train.observability.profiling import Profile
from ddp_trainer.train.recovery.local_state import capture_state, recapture_state, recover_state, restore_state
from ddp_trainer.train.recovery.peer_recovery import LocalState, RecoveredState
from ddp_trainer.train.recovery.spare_ranks import await_end, needs_more_ranks, select_active_ranks
from ddp_trainer.train.utils.errors import GroupEnds, NotFinite, StaleGeneration
from ddp_trainer.train.utils.gc_control import collect_if_due, collecting_by_hand


class Trainer:
    """One process's part of one run, over all worker groups that the process joins."""

    _kept: TrainState
    _ledger: SampleTracker
    _parts: GroupComponents
    _plan: BatchPlan
    _state: CheckpointState
    _saver: CheckpointManager
    _profile: Profile

    def __init__(self, config: Config, task: Task, around: ProcessContext) -> None:
        """Build everything that does not depend on a group.

        Args:
            config: The configuration.
            task: The task to train.
            around: The context of this process, which may belong to no group yet.
        """
        self._config = config
        self._around, self._group = around, around.group
        self._recorder, self._progress = around.recorder, around.progress
        self._ground = build_context(config, task, around)
        self._phases, self._watch = self._ground.phases, self._ground.watch
        self._history = GoodputTracker(self._phases)
        self._has_state = False
        self._luggage: LocalState | None = None
        self._audience = CallbackList()
        self._has_entered = False
        self._has_parts = False
        self._lacks_model = False
        self._to_stop = self._to_save = False
        self._step = 0

    @property
    def can_stay(self) -> bool:
        """True if this process can join the next group with its current state."""
        return self._ground.can_stay

    def go(self, around: ProcessContext) -> Outcome:
        """Train in one worker group until the run ends or must stop; called once for each group.

        Args:
            around: The context of this process in the group.

        Returns:
            The summary and the exit code.

        Raises:
            PeerLost: The group has ended. After :meth:`abandon`, this process can resume in the next group.
            TrainError: See :mod:`ddp_trainer.train.utils.errors`.
        """
        try:
            with around.group.blamed():
                return self._go(around)
        finally:
            self._phases.enter(None)  # ranks do not wait for anything outside of this call

    def _go(self, around: ProcessContext) -> Outcome:
        self._enter(around)
        check_shard(self._config)
        if needs_more_ranks(self._config.parallel, self._group.world_size, around.env.most_ranks):
            self._progress.note(
                f"--parallel {self._config.parallel} takes more than {self._group.world_size} ranks: waiting."
            )
            return self._stand_aside()
        is_new = not self._has_state
        restored = self._restore()
        if self._group.is_spare:
            return self._stand_aside()
        if restored is not None and restored.finished is not None:
            self._progress.note(f"The run was finished at step {self._step} already.")
            return Outcome(restored.finished, Exit.SUCCESS)
        self._assemble(restored)
        self._audience.begin(self._step, self._ground, self._plan)
        around.begin_training()
        self._phases.restart()
        self._history.begin()
        with collecting_by_hand(self._config.gc_steps):
            self._pay_evaluation()
            if is_new and restored is None and self._config.on_nonfinite is OnNonFinite.ROLLBACK:
                self._save(None)
            while self._step < self._plan.total_steps and not self._watch.has_waited_enough:
                if self._take_step():
                    return self._group_ends()
            return self._succeeded()

    def abandon(self, *, stays: bool = True) -> None:
        """Drop everything that belongs to the ended group, and its uncommitted step.

        Args:
            stays: Keep the state, because this process joins another group.
        """
        is_spread = self._config.spreads
        in_doubt = is_spread and self._has_parts and self._parts.stepper.in_doubt and self._group.had_reduced
        if self._has_parts:
            self._parts.abandon(keeps_gradients=in_doubt)
            self._has_parts = False
            del self._parts
        if is_spread and stays and self._has_entered:
            self._pack_up(in_doubt=in_doubt)
        self._to_stop = self._to_save = False
        # Before the process group is destroyed: DDP's reducer is in a reference cycle and must not hold the last
        # reference to it. It would wait for gloo's threads while it holds the GIL, and they may wait for the GIL.
        gc.collect()

    def _pack_up(self, *, in_doubt: bool) -> None:
        """Extract the shards of a distributed model as plain tensors, because DTensors are bound to the group."""
        if self._has_state:
            self._luggage = capture_state(self._ground, self._kept, self._state, self._step, in_doubt=in_doubt)
        self._let_go()

    def _let_go(self) -> None:
        """Drop the model and the state that this rank holds."""
        if self._has_state:
            self._has_state = False
            del self._kept, self._state
        # The next model is initialized later, when the other ranks do not wait for this process to leave.
        self._ground, self._lacks_model = replace(self._ground, model=nn.Identity()), True

    def leave(self) -> Outcome:
        """Handle a stop request outside of any group: save the state if this rank is responsible for it."""
        return self._stopped()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._has_parts:
            self._parts.feed.close()
        if self._has_entered:
            self._profile.__exit__(kind, err, trace)
            self._audience.close()
            self._saver.__exit__()

    def _enter(self, around: ProcessContext) -> None:
        """Switch to the context of a new group: recorder, checkpoint manager and callbacks."""
        config, env, group = self._config, around.env, around.group
        self._around, self._group, self._recorder = around, group, around.recorder
        self._ground = replace(self._ground, around=around)
        if not self._has_entered or not renew_saver(self._saver, config, env, group):
            saver = make_saver(config, env, group, self._recorder, self._progress, self._watch.best)
            if self._has_entered:
                saver.follow(self._saver)
            self._saver = saver
        if not self._has_entered:
            self._profile = Profile(config, env)
        self._audience.enter(self._ground)
        self._has_entered = True

    def _restore(self) -> Restored | None:
        """Agree with all ranks on the state to resume from, and load it: own, a peer's, a checkpoint, or new.

        It also counts the lost steps.

        Returns:
            What was loaded from a peer or a checkpoint; None if nothing was loaded or this rank is a spare.
        """
        began = time.perf_counter()
        self._history.restoring()
        held = progress_key(self._step, is_evaluated=self._watch.has_seen(self._step)) if self._has_state else None
        saver = self._saver
        taken = recover_state(self._ground, self._luggage, self._demand) if self._config.spreads else None
        if taken is None:
            self._luggage = None  # void for all ranks; a later group must not receive it
        saver.open(self._group if self._config.spreads and taken is None else None)
        checkpoint, is_durable = (
            find_state(self._group, held, copy=self._copy, newest=self._newest, demand=self._demand)
            if taken is None
            else ResumeSource(taken.beside)
        )
        if self._config.parallel is not None:
            select_active_ranks(self._config.parallel, self._group, self._progress.note)
        if self._group.is_spare:
            self._luggage = None  # the others train on; if they are lost later, a checkpoint is newer than this
            self._let_go()
            return None
        if taken is not None:
            self._luggage = recapture_state(taken, self._ground)
        odometer = make_odometer(self._config, self._around.env, self._ground.identity, self._progress.alarm)
        self._history.recall(odometer, self._recorder, self._group, self._around.began, self._around.env)
        if not self._has_state:
            self._begin_anew(is_void=taken is None)
            stored_shards = None if checkpoint is None else checkpoint.manifest.shards
            loads = checkpoint is not None or self._config.init_from is not None
            self._kept = build_state(self._ground, stored_shards, loads=loads)
            self._ledger = self._kept.ledger
            self._step = 0
        self._plan = self._kept.plan
        self._state = CheckpointState(self._ground, self._kept, self._history, keeps=saver.writes)
        self._audience.expect(self._ground, self._plan)
        self._history.go_on_from(self._step if checkpoint is None else checkpoint.manifest.step)
        restored = None if checkpoint is None else self._load(checkpoint, taken)
        is_loaded = restored is not None and (taken is None or taken.was_behind)
        if restored is not None:
            saver.saved_step = self._step if is_durable else None
        if is_loaded:
            self._recorder.checkpoint_loaded(time.perf_counter() - began)
        elif restored is None and held is None and self._config.init_from is not None:
            self._initialize(self._config.init_from)
        self._group.confirm()
        self._has_state, self._luggage = True, None
        self._history.restored(loaded=is_loaded)
        return restored

    def _initialize(self, file: Path) -> None:
        """Start with the weights of the file in ``--init-from``."""
        model, kept, with_optimizer = self._ground.model, self._kept, self._config.init_optimizer
        initialize(model, kept.optimization, file, kept.spread, with_optimizer=with_optimizer)

    def _begin_anew(self, *, is_void: bool) -> None:
        """Provide a model to load into; if no rank keeps its state (``is_void``), also reset evaluation and guard."""
        if self._lacks_model:
            model = draw(self._config, self._ground.task, self._around)
            self._ground, self._lacks_model = replace(self._ground, model=model), False
        if is_void:
            self._watch = Watch(self._config)
            guard = Guard(self._config, self._progress.note)
            self._ground = replace(self._ground, watch=self._watch, guard=guard)

    def _stand_aside(self) -> Outcome:
        """Wait as a spare rank for the end of the run or for another group."""
        self._phases.enter(Section.ASIDE)
        return Outcome(await_end(self._around), Exit.SUCCESS)

    def _assemble(self, restored: Restored | None) -> None:
        """Build the components of this group, and reserve memory for saves."""
        self._group.is_starting = True
        self._parts = build_components(self._ground, self._kept)
        self._has_parts = True
        if restored is not None:
            self._parts.feed.load_state_dict(restored.data)
        if self._parts.strategy.remark:
            self._progress.note(self._parts.strategy.remark)
        size_bytes, of_part = self._state.reserved()
        self._saver.reserve(size_bytes, of_part=of_part)

    def _copy(self) -> Checkpoint:
        return self._state.copy(self._step)

    def _newest(self) -> Checkpoint | None:
        return self._saver.newest(self._group if write_together(self._config) else None)

    def _demand(self, manifest: Manifest) -> None:
        config = self._config
        demand_same(manifest, self._ground.identity, where=f"in {config.checkpoint_dir}", shards=config.shards)

    def _load(self, checkpoint: Checkpoint, taken: RecoveredState | None = None) -> Restored:
        """Restore the state from a checkpoint, or from ``taken``, the state recovered from peers."""
        if taken is None:
            restored = self._state.give_back(checkpoint)
        else:
            restored = restore_state(taken, self._ground, self._kept, self._state)
        self._step = restored.step
        return restored

    def _roll_back(self, why: str) -> None:
        """Resume from the newest checkpoint in this process; the steps since then count as lost."""
        self._saver.settle()
        found = newest_of_all(self._newest(), self._group, self._demand)
        if found is None:
            raise NotFinite(why, hint="There is no checkpoint to go back to: see why none could be saved.")
        self._parts.feed.load_state_dict(self._load(found.checkpoint).data)
        self._saver.saved_step = self._step
        self._parts.stepper.restart()
        lost = self._history.go_on_from(self._step)
        self._audience.rewind(self._step, lost, why)
        self._pay_evaluation()

    def _take_step(self) -> bool:
        """Take one step, then evaluate and save if due; return True if the ranks agreed to stop."""
        collect_if_due(self._step, self._config.gc_steps)
        self._saver.poll()
        self._profile.step(self._step)
        try:
            stepper, stops = self._parts.stepper, self._around.is_asked_to_leave
            verdict = stepper.take(self._step, stop=stops, save=self._saver.wants_save(), word=self._history.word)
        except RollBack as err:
            self._roll_back(str(err))
            return False
        self._group.is_starting = False
        self._step += 1
        self._history.reached(self._step, verdict.time)
        self._audience.step(self._step, self._kept, verdict, own=self._parts.stepper.samples)
        self._to_stop |= verdict.stop > 0
        self._to_save |= self._saver.is_due(self._step, asked=bool(verdict.save))
        if not self._parts.strategy.is_synchronised(self._step):
            return False
        if self._to_stop:
            return True
        if self._step < self._plan.total_steps:
            # Evaluate before saving, so that a restart from this checkpoint needs no second evaluation.
            best = self._watch.owes(self._step, self._plan, self._config) and self._evaluate_for_keeping()
            if self._to_save or best:
                self._save(None)
        return False

    def _pay_evaluation(self) -> None:
        """Run an evaluation that is overdue, and save its result, so that a rollback does not repeat it."""
        if self._watch.owes(self._step, self._plan, self._config):
            self._evaluate_for_keeping()
            self._save(None)

    def _evaluate_for_keeping(self) -> bool:
        """Evaluate; return True if this state is the best so far and must be kept."""
        return self._watch.evaluated(self._step, self._evaluate())

    def _evaluate(self) -> dict[str, float]:
        self._phases.lap(Phase.OTHER)
        self._phases.enter(Section.EVALUATION)
        metrics = self._parts.evaluation.run(self._ground.model)
        self._phases.evaluated()
        if metrics:
            self._audience.evaluated(self._step, self._plan.epoch_of(self._step - 1), metrics)
        return metrics

    def _save(self, summary: Summary | None) -> None:
        data = self._parts.feed.state_dict() if self._has_parts else None
        self._to_save = False
        self._state.save(self._saver, self._step, summary, data)

    def _settle(self) -> None:
        self._phases.enter(Section.CHECKPOINT)
        self._saver.settle()
        self._phases.lap(Phase.CHECKPOINT)

    def _group_ends(self) -> Outcome:
        """End the group as all ranks agreed; ranks without a stop request raise GroupEnds if they can join another."""
        control = self._around.control
        ended = GroupEnds(f"The group ended after step {self._step}, as all ranks agreed.")
        if self._config.spreads and control is not None:
            self._save(None)  # while all ranks are present: a rank that leaves takes its shard of the model with it
        if control is not None and self.can_stay and not self._around.stop.requested:
            raise ended
        if control is not None and self._around.stop.requested:
            # The others do not wait for this rank's save, unless it holds a shard of the model.
            control.leave(ended, stays=False, publishes=self._config.spreads)
        return self._stopped()

    def _stopped(self) -> Outcome:
        try:
            # Without a group, a rank of a distributed model has only shards and cannot save.
            if self._saver.saved_step != self._step and self._has_state:
                self._save(None)
            self._settle()
            self._history.leave()
        except StaleGeneration:
            if self._around.control is None:
                raise
            self._progress.note("The other ranks have gone on, and save what they come to.")
        saved = "saved" if self._saver.holds(self._step) else "nothing saved"
        self._progress.note(f"Told to stop: left after step {self._step} of {self._plan.total_steps}, {saved}.")
        code = self._around.stop.exit_code
        return Outcome(self._summary(Result.STOPPED, {}), code if code is not None else Exit.TERMINATED)

    def _succeeded(self) -> Outcome:
        metrics = self._watch.metrics_after(self._step)
        if metrics is None:
            metrics = self._evaluate()
            self._watch.evaluated(self._step, metrics)
        summary = self._summary(Result.SUCCEEDED, metrics)
        self._save(summary)
        self._settle()
        self._history.finish()
        if (digest := self._state.digest()) is not None:
            self._progress.note(f"Weights and optimizer have the SHA-256 {digest}.")
        # With a volume per pod, one copy is enough. The collective also waits for the saves of all ranks.
        copies = sum(self._group.gather(self._saver.holds(self._step)))
        error = None if copies else self._saver.not_written(self._step)
        self._audience.show(self._ground, together=self._state.is_spread)
        return Outcome(summary, Exit.SUCCESS if error is None else error.exit_code, error)

    def _summary(self, result: Result, metrics: dict[str, float]) -> Summary:
        ledger, history, loss = self._ledger, self._history, self._audience.loss
        return summarize(result, self._ground, self._plan, ledger, history, step=self._step, loss=loss, metrics=metrics)
