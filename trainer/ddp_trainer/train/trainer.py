"""Sequence of a run from its flags to its summary: build, resume, step, save, evaluate.

:class:`Trainer` runs the sequence in each worker group. The step is in :mod:`ddp_trainer.train.step`, the
state that outlives groups in :mod:`ddp_trainer.train.recovery.elastic_state`. Events go to
:mod:`ddp_trainer.train.loop.callbacks`. :class:`~ddp_trainer.train.elastic_loop.ElasticLoop` drives the same sequence
around a user-written loop.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Self

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.time_classes import Phase, Section
from ddp_trainer.train.checkpoint.checkpoint_factory import make_saver
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager
from ddp_trainer.train.checkpoint.summary import Outcome, Result, Summary
from ddp_trainer.train.config.config import Config, check_shard
from ddp_trainer.train.config.option_values import OnNonfinite
from ddp_trainer.train.data.batch_plan import StepPlan
from ddp_trainer.train.data.task import Task
from ddp_trainer.train.loop.callbacks import CallbackList
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
from ddp_trainer.train.loop.group_components import GroupComponents, build_components
from ddp_trainer.train.loop.nonfinite_policy import RollBack
from ddp_trainer.train.loop.run_context import ProcessContext, build_context
from ddp_trainer.train.loop.train_state import RestoreResult, TrainState
from ddp_trainer.train.recovery.elastic_state import ElasticState
from ddp_trainer.train.recovery.group_transition import await_end, needs_more_ranks
from ddp_trainer.train.step import StepResult, begin_step, commit_step, compute_step
from ddp_trainer.train.utils.errors import GroupEnded, PeerLost, StaleGeneration


class Trainer:
    """One process's part of one run, over all worker groups that the process joins."""

    components: GroupComponents
    """Components of the current group, from :meth:`start` to :meth:`teardown_group`."""
    _saver: CheckpointManager

    def __init__(self, config: Config, task: Task, process: ProcessContext) -> None:
        """Build everything that does not depend on a group; ``process`` may belong to no group yet."""
        self._config = config
        self._process = process
        self._context = build_context(config, task, process)
        self._timer = self._context.timer
        self._history = GoodputTracker(self._timer)
        self._elastic_state = ElasticState(self._context, self._history)
        self.callbacks = CallbackList(config)
        """Receivers of the events of this run."""
        self._has_entered = self._has_components = False
        self._must_stop = self._must_save = False

    @property
    def state(self) -> TrainState:
        """Training state; between groups, only its data position is valid."""
        return self._elastic_state.state

    @property
    def can_join_next_group(self) -> bool:
        """True if this process can join the next group with its current state."""
        return self._context.can_join_next_group

    @property
    def is_done(self) -> bool:
        """True if all planned steps are committed, or evaluations have stopped improving."""
        return self.state.step >= self.state.plan.total_steps or self._context.watch.should_stop

    def run(self, process: ProcessContext) -> Outcome:
        """Train in one worker group until the run ends or must stop; called once for each group.

        Raises:
            PeerLost: The group has ended. After :meth:`teardown_group`, this process can resume in the next group.
            TrainError: See :mod:`ddp_trainer.train.utils.errors`.
        """
        try:
            with process.group.convert_abort_errors(), manual_gc(self._config.gc_steps):
                if (outcome := self.start(process)) is not None:
                    return outcome
                while not self.is_done:
                    if self.train_step():
                        return self.end_group()
                return self.finish()
        except PeerLost:
            raise
        except Exception as err:
            if self._elastic_state.verification is not None:
                self._elastic_state.verification.raise_if_damaged(err)
            raise
        finally:
            self._timer.enter(None)  # ranks do not wait for anything outside of this call

    def start(self, process: ProcessContext) -> Outcome | None:
        """Enter a worker group, resume, and build its components; return an outcome if there is nothing to train."""
        config, env, group, is_new = self._config, process.env, process.group, not self._elastic_state.is_complete
        self._process = process
        self._context.enter(process)
        former, best = self._saver if self._has_entered else None, self._context.watch.best
        self._saver = make_saver(config, env, group, process.recorder, process.progress, best, former)
        self.callbacks.enter(self._context)
        self._has_entered = True
        check_shard(config)
        if needs_more_ranks(config.parallel, group.world_size, env.max_ranks):
            process.progress.log_message(
                f"--parallel {config.parallel} takes more than {group.world_size} ranks: waiting."
            )
            return await_end(process, self._timer)
        restored = self._elastic_state.resume(self._saver)
        if group.is_spare:
            return await_end(process, self._timer)
        self.callbacks.expect(self.state)
        if self.is_done or self._is_evaluation_due():
            self._confirm(wait=True)
        if restored is not None and restored.finished is not None:
            process.progress.log_message(f"The run was finished at step {self.state.step} already.")
            return Outcome(restored.finished, Exit.SUCCESS)
        self._build(restored)
        self.callbacks.begin(self.state)
        process.begin_training()
        self._timer.restart()
        self._history.begin()
        self._run_due_evaluation()
        if is_new and restored is None and config.on_nonfinite is OnNonfinite.ROLLBACK:
            self._save(None)
        return None

    def _build(self, restored: RestoreResult | None) -> None:
        """Build the components of this group, and reserve memory for saves."""
        self.components = build_components(self.state)
        self._has_components = True
        if restored is not None:
            self.components.feed.load_state_dict(restored.data)
        if self.components.strategy.remark:
            self._process.progress.log_message(self.components.strategy.remark)
        self.state.reserve_memory(self._saver)

    def train_step(self) -> bool:
        """Take one step, then evaluate and save if due; return True if the ranks agreed to stop."""
        step_plan = self.start_step()
        return self.end_step(step_plan, compute_step(self.state, self.components, step_plan))

    def start_step(self) -> StepPlan:
        """Clear the gradients, and return the samples of the next step."""
        step, gc_steps = self.state.step, self._config.gc_steps
        if gc_steps is not None and step % gc_steps == 0:
            gc.collect()
        if self._saver.writing is not None:
            self._saver.poll()
        if self.callbacks.profile is not None:
            self.callbacks.profile.step(step)
        return begin_step(self.state, self.components)

    def end_step(self, step_plan: StepPlan, result: StepResult) -> bool:
        """Commit a step on all ranks or on none, evaluate and save if due; return True if the ranks agreed to stop."""
        state, saver, process, times = self.state, self._saver, self._process, self._history.time_report()
        stops = process.stop.exit_code is not None or (process.control is not None and process.control.asked)
        saves = saver.every_seconds is not None and saver.should_save()
        try:
            decision = commit_step(state, self.components, step_plan, result, stop=stops, save=saves, times=times)
        except RollBack as err:
            self._roll_back(str(err))
            return False
        process.group.is_starting = False
        self._history.record_step(state.step, decision.time)
        loss, own_samples = decision.mean_loss, result.samples if process.group.counts else 0
        self.callbacks.step(state, step_plan, loss=loss, is_finite=decision.is_finite, own_samples=own_samples)
        is_evaluation_due = step_plan.ends_epoch and self._is_evaluation_due()
        self._must_stop |= decision.stop > 0
        self._must_save |= decision.save > 0 or (saver.every_steps is not None and state.step % saver.every_steps == 0)
        if self._elastic_state.verification is not None:
            self._confirm(wait=self._must_stop or self._must_save or self.is_done or is_evaluation_due)
        if not self.components.strategy.is_synchronized_after(state.step):
            return False
        if not self._must_stop and state.step < state.plan.total_steps:
            # Evaluate before saving, so that a restart from this checkpoint needs no second evaluation.
            is_best = is_evaluation_due and self._evaluate()
            if self._must_save or is_best:
                self._save(None)
        return self._must_stop

    def _confirm(self, *, wait: bool) -> None:
        """See :meth:`.ElasticState.confirm`."""
        self._timer.enter(Section.CHECKPOINT)
        self._elastic_state.confirm(wait=wait)
        self._timer.end_phase(Phase.CHECKPOINT)

    def _roll_back(self, reason: str) -> None:
        """Resume from the newest checkpoint in this process; the steps since then count as lost."""
        self.components.feed.load_state_dict(self._elastic_state.roll_back(self._saver, reason).data)
        self.components.restart()
        lost = self._history.go_on_from(self.state.step)
        self.callbacks.rollback(self.state.step, lost, reason)
        self._run_due_evaluation()

    def _is_evaluation_due(self) -> bool:
        return self._context.watch.is_eval_due(self.state.step, self.state.plan, self._config)

    def _run_due_evaluation(self) -> None:
        """Run an evaluation that is overdue, and save its result, so that a rollback does not repeat it."""
        if self._is_evaluation_due():
            self._evaluate()
            self._save(None)

    def _evaluate(self) -> bool:
        """Evaluate; return True if this state is the best so far and must be kept."""
        self._timer.end_phase(Phase.OTHER)
        self._timer.enter(Section.EVALUATION)
        metrics = self.components.evaluation.run(self._context.model)
        self._timer.record_evaluation()
        if metrics:
            self.callbacks.record_evaluation(self.state, metrics)
        return self._context.watch.record_evaluation(self.state.step, metrics)

    def _save(self, summary: Summary | None) -> None:
        self._must_save = False
        assert self._elastic_state.verification is None  # noqa: S101 - callers confirm the state first
        self.state.save(self._saver, summary, self.components.feed.state_dict() if self._has_components else None)

    def _wait_for_save(self) -> None:
        self._timer.enter(Section.CHECKPOINT)
        self._saver.wait_for_save()
        self._timer.end_phase(Phase.CHECKPOINT)

    def end_group(self) -> Outcome:
        """End the group as all ranks agreed; ranks without a stop request raise GroupEnded if they can join another."""
        control, is_stopped = self._process.control, self._process.stop.exit_code is not None
        ended = GroupEnded(f"The group ended after step {self.state.step}, as all ranks agreed.")
        if self._config.is_model_sharded and control is not None:
            self._save(None)  # while all ranks are present: a rank that leaves takes its shard of the model with it
        if control is not None and self.can_join_next_group and not is_stopped:
            raise ended
        if control is not None and is_stopped:
            # The others do not wait for this rank's save, unless it holds a shard of the model.
            control.report_group_exit(ended, stays=False, publishes=self._config.is_model_sharded)
        return self.stop()

    def stop(self) -> Outcome:
        """Save the state if this rank is responsible for it, and end this process's part of the run."""
        progress, step = self._process.progress, self.state.step
        try:
            # Without a group, a rank of a distributed model has only shards and cannot save.
            if self._saver.saved_step != step and self._elastic_state.is_complete:
                self._save(None)
            self._wait_for_save()
            self._history.save_account()
        except StaleGeneration:
            if self._process.control is None:
                raise
            progress.log_message("The other ranks continue, and save their state.")
        saved = "saved" if self._saver.holds(step) else "nothing saved"
        progress.log_message(f"Stop requested: left after step {step} of {self.state.plan.total_steps}, {saved}.")
        code = self._process.stop.exit_code
        return Outcome(self.summary(Result.STOPPED), code if code is not None else Exit.TERMINATED)

    def finish(self) -> Outcome:
        """Evaluate and save the result of the run; every rank must call it."""
        state, saver, watch = self.state, self._saver, self._context.watch
        if watch.metrics_after(state.step) is None:
            self._evaluate()
        summary = self.summary(Result.SUCCEEDED)
        self._save(summary)
        self._wait_for_save()
        self._history.finish()
        if (digest := state.digest()) is not None:
            self._process.progress.log_message(f"Weights and optimizer have the SHA-256 {digest}.")
        # With a volume per pod, one copy is enough. The collective also waits for the saves of all ranks.
        copies = sum(self._process.group.gather(saver.holds(state.step)))
        error = None if copies else saver.not_written(state.step)
        self.callbacks.show(state)
        return Outcome(summary, Exit.SUCCESS if error is None else error.exit_code, error)

    def summary(self, result: Result) -> Summary:
        """Return the summary of the run so far."""
        state = self.state
        context, plan, tracker = state.context, state.plan, state.tracker
        config, env, watch = context.config, context.process.env, context.watch
        metrics = (watch.metrics_after(state.step) or {}) if result is Result.SUCCEEDED else {}
        return Summary(
            result=result,
            task=context.task.name,
            steps=state.step,
            epochs=round(state.step / plan.steps_per_epoch, 4),
            accuracy=metrics.get("accuracy"),
            loss=metrics.get("loss", self.callbacks.loss),
            metrics=metrics,
            best=watch.best_of_run(),
            stopped_early=watch.should_stop and state.step < plan.total_steps,
            samples_lost=tracker.lost,
            samples_repeated=tracker.repeated,
            samples_skipped=tracker.skipped,
            skipped_steps=context.guard.skipped,
            rollbacks=context.guard.rollbacks,
            restarts=dict(env.restarts),
            **state.history.summary(),
            world_size=context.process.group.world_size,
            global_batch=config.global_batch,
            batch_slices=plan.batch_slices,
            seed=config.seed,
            generation=env.generation,
        )

    def teardown_group(self, *, stays: bool = True, collects: bool = True) -> None:
        """Drop everything that belongs to the ended group, and its uncommitted step.

        Args:
            stays: Keep the state, because this process joins another group.
            collects: Collect garbage. DDP's reducer, which is in a reference cycle, must not be the last to hold the
                process group: it would wait for gloo's threads with the GIL held, and they may wait for the GIL.
        """
        is_sharded, in_doubt = self._config.is_model_sharded, False
        if self._has_components:
            # Other ranks may have committed the step. Its gradients are then needed to apply it here.
            in_doubt = is_sharded and self.components.in_doubt and self._process.group.is_reduction_complete
            self.components.close()
            if not in_doubt:
                self.state.optimizer.discard_step()
            self._has_components = False
            del self.components
        if stays and self._has_entered and (is_sharded or self._elastic_state.verification is not None):
            self._elastic_state.capture(in_doubt=in_doubt)
        self._must_stop = self._must_save = False
        if collects:
            gc.collect()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._has_components:
            self.components.feed.close()
        if self._has_entered:
            self.callbacks.close(has_failed=kind is not None)
            self._saver.__exit__()


@contextmanager
def manual_gc(every_steps: int | None) -> Iterator[None]:
    """Disable automatic garbage collection inside the context, unless ``every_steps`` is None.

    With ``--gc-steps``, all ranks collect after the same steps. By default each rank collects at a different time, and
    all other ranks wait for it.
    """
    if every_steps is None or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
