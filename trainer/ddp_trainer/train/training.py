"""A run from its flags to its summary: build the parts, go on from the newest checkpoint, step, save, evaluate.

The story stands here; the parts and how they are made in :mod:`ddp_trainer.train.groundwork` and
:mod:`ddp_trainer.train.assembly`, what a checkpoint holds of them in :mod:`ddp_trainer.train.state`.
"""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass

from ddp_trainer.contract import Exit, Phase, Section
from ddp_trainer.train.announcement import on_small_data, started
from ddp_trainer.train.assembly import assemble
from ddp_trainer.train.checkpoint import Checkpoint
from ddp_trainer.train.collection import collect_if_due, collecting_by_hand
from ddp_trainer.train.config import Config
from ddp_trainer.train.errors import CheckpointNotWritten, NotFinite
from ddp_trainer.train.exchange import newest_of_all
from ddp_trainer.train.groundwork import lay_groundwork
from ddp_trainer.train.guards import RollBack
from ddp_trainer.train.history import History
from ddp_trainer.train.manifest import demand_same
from ddp_trainer.train.models import flops
from ddp_trainer.train.options import OnNonFinite
from ddp_trainer.train.profiling import Profile
from ddp_trainer.train.progress import Evaluated
from ddp_trainer.train.reports import open_reports
from ddp_trainer.train.snapshot import state_bytes
from ddp_trainer.train.state import State
from ddp_trainer.train.summary import Result, Summary
from ddp_trainer.train.surroundings import Surroundings
from ddp_trainer.train.task import Task
from ddp_trainer.train.vote import Verdict
from ddp_trainer.train.weights import initialize
from ddp_trainer.train.writer import make_odometer, make_saver


@dataclass(frozen=True, slots=True)
class Outcome:
    """How this process's part of a run ended."""

    summary: Summary
    exit_code: int
    """0, or 143 (130 after Ctrl-C) when told to stop."""
    error: CheckpointNotWritten | None = None
    """The run is done, but its last state is not on any disk."""


class Run:
    """One process's part of one run."""

    def __init__(self, config: Config, task: Task, around: Surroundings) -> None:
        env, group, recorder, progress = around.env, around.group, around.recorder, around.progress
        self._config = config
        self._around = around
        self._group, self._recorder, self._progress = group, recorder, progress
        self._ground = lay_groundwork(config, task, around)
        self._phases, self._watch = self._ground.phases, self._ground.watch
        self._saver = make_saver(config, env, group, recorder, progress, self._watch.best)
        self._history = History(make_odometer(config, env, self._ground.identity), self._phases, recorder)
        self._reports = open_reports(config, env)
        self._profile = Profile(config, env)
        self._to_stop = self._to_save = False
        self._step = 0
        self._loss: float | None = None

    def go(self) -> Outcome:
        """As :meth:`_go`; what comes before and after is nothing that ranks wait for."""
        try:
            return self._go()
        finally:
            self._phases.enter(None)

    def _go(self) -> Outcome:
        """Train to the end, or until told to stop.

        Raises:
            TrainError: see :mod:`ddp_trainer.train.errors`.
        """
        checkpoint = self._restore()
        self._build(None if checkpoint is None else checkpoint.manifest.shards)
        finished = self._initialize() if checkpoint is None else self._load(checkpoint)
        if finished is not None:
            self._progress.note(f"The run was finished at step {self._step} already.")
            return Outcome(finished, Exit.SUCCESS)
        self._saver.reserve(state_bytes(self._ground.model, self._plan.samples))
        self._announce()
        self._around.stop.training_begins()
        self._phases.restart()
        by_hand = collecting_by_hand(self._config.gc_steps)
        with by_hand, closing(self._parts.feed), self._saver, self._reports, self._profile:
            self._pay_evaluation()
            if checkpoint is None and self._config.on_nonfinite is OnNonFinite.ROLLBACK:
                self._save(None)
            while self._step < self._plan.total_steps and not self._watch.has_waited_enough:
                if self._take_step():
                    return self._stopped()
            return self._succeeded()

    def _restore(self) -> Checkpoint | None:
        """The newest checkpoint of any rank, checked to be of this run, and the account of lost steps."""
        began = time.perf_counter()
        self._saver.open()
        checkpoint = self._newest()
        self._history.recall(self._group, self._around.began)
        self._history.go_on_from(0 if checkpoint is None else checkpoint.manifest.step)
        if checkpoint is not None:
            self._recorder.checkpoint_loaded(time.perf_counter() - began)
        return checkpoint

    def _newest(self) -> Checkpoint | None:
        identity, shards = self._ground.identity, self._config.shards
        where = f"in {self._config.checkpoint_dir}"
        found = newest_of_all(
            self._saver.newest(),
            self._group,
            lambda manifest: demand_same(manifest, identity, where=where, shards=shards),
        )
        return None if found is None else found.checkpoint

    def _build(self, stored_shards: int | None) -> None:
        self._parts = assemble(self._ground, stored_shards)
        self._plan = self._parts.plan
        self._state = State(self._ground, self._parts, self._history)
        self._recorder.planned(self._plan.total_steps)

    def _initialize(self) -> Summary | None:
        """Start anew: from random weights, or from those of a file."""
        file = self._config.init_from
        if file is not None:
            optimization = self._parts.optimization
            initialize(self._ground.model, optimization, file, with_optimizer=self._config.init_optimizer)
            self._parts.stepper.restart()
        return None

    def _load(self, checkpoint: Checkpoint) -> Summary | None:
        """Go on from a checkpoint; the summary, if it is that of a finished run."""
        self._step, finished = self._state.give_back(checkpoint)
        self._saver.saved_step = self._step
        return finished

    def _roll_back(self, why: str) -> None:
        """Go on from the newest checkpoint, in this process; the steps since count as lost."""
        self._saver.settle()
        checkpoint = self._newest()
        if checkpoint is None:
            raise NotFinite(why, hint="There is no checkpoint to go back to: see why none could be saved.")
        self._load(checkpoint)
        lost = self._history.go_on_from(self._step)
        self._reports.rewind(self._step)
        self._progress.note(f"{why} Rolled back to step {self._step}: steps to do again: {lost}.")
        self._pay_evaluation()

    def _announce(self) -> None:
        self._progress.begin(self._step)
        self._reports.begin(self._step)
        model = self._ground.model
        self._progress.tell(
            started(self._ground.task.name, model, self._plan, self._group, step=self._step, flops=flops(model))
        )
        if remark := on_small_data(self._plan):
            self._progress.note(remark)

    def _take_step(self) -> bool:
        """One step, with the saving and evaluating that is due after it; whether the ranks agreed to stop."""
        collect_if_due(self._step, self._config.gc_steps)
        self._saver.poll()
        self._profile.step(self._step)
        asked = self._around.stop.requested
        try:
            verdict = self._parts.stepper.take(self._step, stop=asked, save=self._saver.wants_save())
        except RollBack as err:
            self._roll_back(str(err))
            return False
        self._step += 1
        self._history.reached(self._step)
        self._report(verdict)
        self._to_stop |= verdict.stop > 0
        self._to_save |= self._saver.is_due(self._step, asked=bool(verdict.save))
        if not self._parts.strategy.is_synchronised(self._step):
            return False
        if self._to_stop:
            return True
        if self._step < self._plan.total_steps:
            # Evaluated before it is saved, so that a restart from here needs no second evaluation.
            best = self._owes_evaluation() and self._evaluate_for_keeping()
            if self._to_save or best:
                self._save(None)
        return False

    def _report(self, verdict: Verdict) -> None:
        """Tell everyone who listens about the step just done."""
        epoch = self._plan.epoch_of(self._step - 1)
        if verdict.is_finite or self._loss is None:
            self._loss = verdict.loss / verdict.samples
        rate = self._parts.optimization.learning_rate
        own = self._parts.stepper.samples
        self._phases.report(self._recorder, step=self._step, epoch=epoch, samples=own)
        self._recorder.progress(self._loss, rate)
        self._progress.step(
            step=self._step,
            steps=self._plan.total_steps,
            epoch=epoch + 1,
            samples=verdict.samples,
            loss=self._loss,
            learning_rate=rate,
        )
        self._reports.step(self._step, epoch, {"loss": self._loss, "learning_rate": rate})

    def _owes_evaluation(self) -> bool:
        """Whether the step just done, perhaps by an earlier process, still has to be followed by an evaluation."""
        step, plan = self._step - 1, self._plan
        if step < 0 or self._step >= plan.total_steps or not plan.ends_epoch(step):
            return False
        return (plan.epoch_of(step) + 1) % self._config.evaluate_every == 0 and not self._watch.has_seen(self._step)

    def _pay_evaluation(self) -> None:
        """Evaluate a state that was saved before it could be, and save it with that: a rollback to it remembers."""
        if self._owes_evaluation():
            self._evaluate_for_keeping()
            self._save(None)

    def _evaluate_for_keeping(self) -> bool:
        """Evaluate; whether this state is the best so far, and to be kept as such."""
        return self._watch.evaluated(self._step, self._evaluate())

    def _evaluate(self) -> dict[str, float]:
        self._phases.enter(Section.EVALUATION)
        metrics = self._parts.evaluation.run(self._ground.model)
        self._phases.lap(Phase.OTHER)
        if metrics:
            self._recorder.evaluated(metrics.get("loss", float("nan")), metrics.get("accuracy", float("nan")))
            epoch = self._plan.epoch_of(self._step - 1) + 1
            self._progress.tell(Evaluated(epoch=epoch, step=self._step, metrics=metrics))
            self._reports.evaluated(self._step, epoch - 1, metrics)
        return metrics

    def _save(self, summary: Summary | None) -> None:
        step, state = self._step, self._state
        self._to_save = False
        self._phases.lap(Phase.OTHER)
        self._phases.enter(Section.CHECKPOINT)
        self._saver.save(step, lambda: state.take(step, summary), lambda: state.manifest(step))
        self._phases.lap(Phase.CHECKPOINT)

    def _settle(self) -> None:
        self._phases.enter(Section.CHECKPOINT)
        self._saver.settle()
        self._phases.lap(Phase.CHECKPOINT)

    def _stopped(self) -> Outcome:
        if self._saver.saved_step != self._step:
            self._save(None)
        self._settle()
        saved = "saved" if self._config.checkpoint_dir is not None and self._saver.failure is None else "nothing saved"
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
        if (digest := self._state.digest()) is not None:
            self._progress.note(f"Weights and optimizer have the SHA-256 {digest}.")
        # With a volume per pod, one copy is enough. Ranks also wait here for each other's saves.
        copies = sum(self._group.gather(self._saver.holds(self._step)))
        error = None if copies else self._saver.not_written(self._step)
        return Outcome(summary, Exit.SUCCESS if error is None else error.exit_code, error)

    def _summary(self, result: Result, metrics: dict[str, float]) -> Summary:
        ground, plan, ledger, env = self._ground, self._plan, self._parts.ledger, self._around.env
        seconds = self._history.seconds
        return Summary(
            result=result,
            task=ground.task.name,
            steps=self._step,
            epochs=round(self._step / plan.steps_per_epoch, 4),
            accuracy=metrics.get("accuracy"),
            loss=metrics.get("loss", self._loss),
            metrics=metrics,
            best=self._watch.best_of_run(),
            stopped_early=self._watch.has_waited_enough and self._step < plan.total_steps,
            samples_lost=ledger.lost,
            samples_repeated=ledger.repeated,
            samples_skipped=ledger.skipped,
            lost_steps=self._history.lost_steps,
            skipped_steps=ground.guard.skipped,
            rollbacks=ground.guard.rollbacks,
            restarts=dict(env.restarts),
            goodput=round(min(self._history.productive / seconds, 1.0), 4),
            seconds=round(seconds, 3),
            world_size=self._group.world_size,
            global_batch=self._config.global_batch,
            shards=plan.shards,
            seed=self._config.seed,
            generation=env.generation,
        )
