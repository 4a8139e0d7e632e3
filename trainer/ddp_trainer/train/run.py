"""A run from its flags to its summary: build the parts, go on from the newest checkpoint, step, save, evaluate."""

from __future__ import annotations

import json
import secrets
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ddp_trainer.contract import CheckpointScope, Exit, Phase
from ddp_trainer.recorder import RankRecorder
from ddp_trainer.train.balance import Balance
from ddp_trainer.train.batches import data_digest, is_stream
from ddp_trainer.train.checkpoint import Checkpoint, CheckpointDirectory, unpack
from ddp_trainer.train.claim import Claim
from ddp_trainer.train.collection import collect_if_due, collecting_by_hand
from ddp_trainer.train.computation import prepare
from ddp_trainer.train.config import Config
from ddp_trainer.train.environment import Environment
from ddp_trainer.train.errors import CheckpointNotWritten, NotFinite
from ddp_trainer.train.evaluation import Evaluation
from ddp_trainer.train.exchange import Found, agreed, newest_of_all
from ddp_trainer.train.feeds import Skips, known_count, make_feed, sample_count
from ddp_trainer.train.group import Group
from ddp_trainer.train.guards import Guard, RollBack
from ddp_trainer.train.ledger import Ledger
from ddp_trainer.train.loss_scale import LossScale
from ddp_trainer.train.manifest import Identity, Manifest, demand_same, signature
from ddp_trainer.train.mixing import ALGORITHM
from ddp_trainer.train.models import flops
from ddp_trainer.train.odometer import Odometer, Reading
from ddp_trainer.train.optimization import Optimization
from ddp_trainer.train.option_rules import check_rollback
from ddp_trainer.train.options import BalanceName, Level, OnBadSample, OnNonFinite, PrecisionName
from ddp_trainer.train.phases import Phases
from ddp_trainer.train.plan import Plan, choose_shards, owned, shares
from ddp_trainer.train.profiling import Profile
from ddp_trainer.train.progress import Balanced, Evaluated, Progress, Started
from ddp_trainer.train.randomness import KeyedRandom, Stream
from ddp_trainer.train.reports import open_reports
from ddp_trainer.train.saver import Saver
from ddp_trainer.train.snapshot import state_bytes
from ddp_trainer.train.step import Stepper
from ddp_trainer.train.stop import StopRequest
from ddp_trainer.train.strategies import Parts, build
from ddp_trainer.train.summary import Result, Summary
from ddp_trainer.train.task import Task
from ddp_trainer.train.watch import Watch
from ddp_trainer.train.weights import initialize


@dataclass(frozen=True, slots=True)
class Outcome:
    """How this process's part of a run ended."""

    summary: Summary
    exit_code: int
    """0, or 143 (130 after Ctrl-C) when told to stop."""
    error: CheckpointNotWritten | None = None
    """The run is done, but its last state is not on any disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a run is given besides its flags."""

    env: Environment
    group: Group
    recorder: RankRecorder
    progress: Progress
    stop: StopRequest
    began: float
    """When this process began, in seconds since the Unix epoch; imports count as lost time."""


class Run:
    """One process's part of one run."""

    def __init__(self, config: Config, task: Task, around: Surroundings) -> None:
        self._config = config
        self._task = task
        self._env = around.env
        self._group = around.group
        self._recorder = around.recorder
        self._progress = around.progress
        self._stop = around.stop
        self._began = around.began
        self._samples = task.train_samples()
        KeyedRandom(config.seed, torch.device("cpu")).enter(Stream.WEIGHTS)
        self._model = task.model()
        self._identity = Identity(
            task=task.name,
            model=signature(self._model),
            data=data_digest(task, self._samples),
            samples=known_count(self._samples),
            seed=config.seed,
            global_batch=config.global_batch,
            order=ALGORITHM,
        )
        self._phases = Phases(time.perf_counter)
        self._watch = Watch(config)
        self._saver = self._make_saver()
        self._odometer = self._make_odometer()
        self._skips = Skips(self._progress.alarm)
        self._reports = open_reports(config, self._env)
        self._profile = Profile(config, self._env)
        self._reading = Reading()
        self._guard = Guard(config, self._progress.note)
        self._to_stop = self._to_save = False
        self._step = 0
        self._loss: float | None = None
        self._productive_before = 0.0

    def go(self) -> Outcome:
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
        self._saver.reserve(state_bytes(self._model, self._plan.samples))
        self._announce()
        self._stop.training_begins()
        self._phases.restart()
        with collecting_by_hand(self._config.gc_steps), closing(self._feed), self._saver, self._reports, self._profile:
            if self._owes_evaluation() and self._evaluate_for_keeping():
                self._save(None)
            if checkpoint is None and self._config.on_nonfinite is OnNonFinite.ROLLBACK:
                self._save(None)
            while self._step < self._plan.total_steps and not self._watch.has_waited_enough:
                if self._take_step():
                    return self._stopped()
            return self._succeeded()

    def _writes(self) -> bool:
        one_per_pod = self._config.checkpoint_scope is CheckpointScope.POD
        return (
            self._config.checkpoint_dir is not None and (self._env.local_rank if one_per_pod else self._env.rank) == 0
        )

    def _make_saver(self) -> Saver:
        directory = None
        path = self._config.checkpoint_dir
        if path is not None and self._writes():
            token = secrets.token_hex(8)
            claim = Claim(
                path, generation=self._env.generation, fence=self._env.fence, run_id=self._env.run_id, token=token
            )
            directory = CheckpointDirectory(path, keep=self._config.keep, claim=claim, best=self._watch.best)
        return Saver(
            self._config,
            directory,
            keeps_time=self._group.rank == 0,
            recorder=self._recorder,
            alarm=self._progress.alarm,
            note=self._progress.note,
            device=self._group.device,
        )

    def _make_odometer(self) -> Odometer | None:
        path = self._config.checkpoint_dir
        if path is None or not self._writes():
            return None
        return Odometer(path, json.dumps(asdict(self._identity)))

    def _restore(self) -> Checkpoint | None:
        """The newest checkpoint of any rank, checked to be of this run, and the account of lost steps."""
        began = time.perf_counter()
        self._saver.open()
        found = self._newest()
        own = Reading() if self._odometer is None else self._odometer.read()
        self._reading = agreed(own, self._group, self._began)
        resumed = 0 if found is None else found.checkpoint.manifest.step
        lost = max(0, self._reading.highest_step - resumed)
        if lost:
            self._recorder.lost_steps(lost)
        self._reading = Reading(resumed, self._reading.lost_steps + lost, self._reading.first_start)
        self._drive_odometer()
        if found is None:
            return None
        self._recorder.checkpoint_loaded(time.perf_counter() - began)
        return found.checkpoint

    def _newest(self) -> Found | None:
        where = f"in {self._config.checkpoint_dir}"
        return newest_of_all(
            self._saver.newest(),
            self._group,
            lambda manifest: demand_same(manifest, self._identity, where=where, shards=self._config.shards),
        )

    def _roll_back(self, why: str) -> None:
        """Go on from the newest checkpoint, in this process; the steps since count as lost."""
        self._saver.settle()
        found = self._newest()
        if found is None:
            raise NotFinite(why, hint="There is no checkpoint to go back to: see why none could be saved.")
        reached = self._step
        self._load(found.checkpoint)
        lost = reached - self._step
        self._recorder.lost_steps(lost)
        self._reading = Reading(self._step, self._reading.lost_steps + lost, self._reading.first_start)
        self._drive_odometer()
        self._progress.note(f"{why} Rolled back to step {self._step}: steps to do again: {lost}.")

    def _drive_odometer(self) -> None:
        self._reading.highest_step = max(self._reading.highest_step, self._step)
        if self._odometer is not None:
            self._odometer.write(self._reading)

    def _build(self, stored_shards: int | None) -> None:
        """The parts that need to know how the batch is cut."""
        config, group = self._config, self._group
        shards = choose_shards(
            config.shards if config.shards is not None else stored_shards,
            most_ranks=self._env.most_ranks,
            world_size=group.world_size,
            global_batch=config.global_batch,
        )
        self._plan = Plan(
            samples=sample_count(self._samples, config),
            global_batch=config.global_batch,
            shards=shards,
            seed=config.seed,
            epochs=config.epochs,
            max_steps=config.max_steps,
            sequential=is_stream(self._samples),
            endless=not known_count(self._samples) and is_stream(self._samples),
        )
        check_rollback(config, keeps_checkpoints=config.checkpoint_dir is not None, sequential=self._plan.sequential)
        self._model.to(group.device)
        self._ledger = Ledger(self._plan.samples)
        losses = prepare(self._model, self._task.losses, config, group, self._progress.alarm)
        self._strategy = build(Parts(model=self._model, losses=losses, group=group, plan=self._plan, config=config))
        if self._strategy.remark:
            self._progress.note(self._strategy.remark)
        loss_scale = LossScale(group.device) if config.precision is PrecisionName.FP16 else None
        self._optimization = Optimization.build(self._task, self._model, config, self._plan.total_steps, loss_scale)
        own = owned(shards, group.world_size, group.rank)
        self._feed = make_feed(self._samples, self._plan, own, config, group.device)
        self._stepper = Stepper(
            plan=self._plan,
            group=group,
            strategy=self._strategy,
            optimization=self._optimization,
            feed=self._feed,
            ledger=self._ledger,
            phases=self._phases,
            guard=self._guard,
            config=config,
            balance=self._make_balance(),
            told=self._skips,
        )
        self._evaluation = self._make_evaluation()
        self._recorder.planned(self._plan.total_steps)

    def _make_evaluation(self) -> Evaluation:
        config = self._config
        skipped = self._skips if config.on_bad_sample is OnBadSample.SKIP else None
        if config.level is not Level.EXACT:
            return Evaluation(self._task, self._group, on=config.evaluate_on, skipped=skipped)
        from ddp_trainer.train.exact.evaluation import TreeEvaluation  # noqa: PLC0415 - few runs need it

        return TreeEvaluation(self._task, self._group, self._plan.shards, on=config.evaluate_on, skipped=skipped)

    def _make_balance(self) -> Balance | None:
        if self._config.balance is BalanceName.STATIC:
            return None
        return Balance(
            self._plan.shards, self._group, self._phases, lambda shards: self._progress.tell(Balanced(shards=shards))
        )

    def _initialize(self) -> Summary | None:
        """Start anew: from random weights, or from those of a file."""
        file = self._config.init_from
        if file is not None:
            initialize(self._model, self._optimization, file, with_optimizer=self._config.init_optimizer)
            self._stepper.restart()
        return None

    def _load(self, checkpoint: Checkpoint) -> Summary | None:
        """Go on from a checkpoint; the summary, if it is that of a finished run."""
        state = unpack(checkpoint)
        self._model.load_state_dict(state["model"])
        self._optimization.load_state_dict(state["optimizer"])
        self._optimization.load_loss_scale(state.get("loss_scale"))
        self._guard.load_state_dict(state.get("guard"))
        self._ledger.load_state_dict(state["ledger"])
        self._feed.load_state_dict(state.get("data"))
        if "watch" in state:
            self._watch.load_state_dict(state["watch"])
        self._stepper.restart()
        self._step = self._saver.saved_step = state["cursor"]["step"]
        self._tell_change(state.get("computed_on", ""))
        self._productive_before, self._phases.productive = state["time"]["productive"], 0.0
        self._reading.first_start = min(self._reading.first_start, state["time"]["first_start"])
        summary = state["summary"]
        if summary is None or not (self._step >= self._plan.total_steps or self._watch.has_waited_enough):
            return None
        return Summary.from_dict(summary)

    def _announce(self) -> None:
        plan, group = self._plan, self._group
        sizes = shares(plan.global_batch, plan.shards, group.world_size)
        self._progress.begin(self._step)
        self._reports.begin(self._step)
        self._progress.tell(
            Started(
                task=self._task.name,
                world_size=group.world_size,
                backend=group.backend,
                device=str(group.device),
                shards=plan.shards,
                global_batch=plan.global_batch,
                per_rank=str(sizes[0]) if min(sizes) == max(sizes) else f"{min(sizes)}-{max(sizes)}",
                samples=plan.samples,
                steps_per_epoch=plan.steps_per_epoch,
                steps=plan.total_steps,
                resumed_step=self._step,
                weights=sum(weight.numel() for weight in self._model.parameters()),
                flops_per_sample=flops(self._model),
            ),
        )

    def _take_step(self) -> bool:
        """One step, with the saving and evaluating that is due after it; whether the ranks agreed to stop."""
        step, plan = self._step, self._plan
        collect_if_due(step, self._config.gc_steps)
        self._saver.poll()
        self._profile.step(step)
        try:
            verdict = self._stepper.take(step, stop=self._stop.requested, save=self._saver.wants_save())
        except RollBack as err:
            self._roll_back(str(err))
            return False
        self._step += 1
        self._drive_odometer()
        if verdict.is_finite or self._loss is None:
            self._loss = verdict.loss / verdict.samples
        rate = self._optimization.learning_rate
        self._phases.report(self._recorder, step=self._step, epoch=plan.epoch_of(step), samples=self._stepper.samples)
        self._recorder.progress(self._loss, rate)
        self._progress.step(
            step=self._step,
            steps=plan.total_steps,
            epoch=plan.epoch_of(step) + 1,
            samples=verdict.samples,
            loss=self._loss,
            learning_rate=rate,
        )
        self._reports.step(self._step, plan.epoch_of(step), {"loss": self._loss, "learning_rate": rate})
        self._to_stop |= verdict.stop > 0
        self._to_save |= self._saver.is_due(self._step, asked=bool(verdict.save))
        if not self._strategy.is_synchronised(self._step):
            return False
        if self._to_stop:
            return True
        if self._step < plan.total_steps:
            # Evaluated before it is saved, so that a restart from here needs no second evaluation.
            best = self._owes_evaluation() and self._evaluate_for_keeping()
            if self._to_save or best:
                self._save(None)
        return False

    def _owes_evaluation(self) -> bool:
        """Whether the step just done, perhaps by an earlier process, still has to be followed by an evaluation."""
        step, plan = self._step - 1, self._plan
        if step < 0 or self._step >= plan.total_steps or not plan.ends_epoch(step):
            return False
        return (plan.epoch_of(step) + 1) % self._config.evaluate_every == 0 and not self._watch.has_seen(self._step)

    def _evaluate_for_keeping(self) -> bool:
        """Evaluate; whether this state is the best so far, and to be kept as such."""
        return self._watch.evaluated(self._step, self._evaluate())

    def _evaluate(self) -> dict[str, float]:
        metrics = self._evaluation.run(self._model)
        self._phases.lap(Phase.OTHER)
        if metrics:
            self._recorder.evaluated(metrics.get("loss", float("nan")), metrics.get("accuracy", float("nan")))
            epoch = self._plan.epoch_of(self._step - 1) + 1
            self._progress.tell(Evaluated(epoch=epoch, step=self._step, metrics=metrics))
            self._reports.evaluated(self._step, epoch - 1, metrics)
        return metrics

    def _save(self, summary: Summary | None) -> None:
        self._to_save = False
        self._phases.lap(Phase.OTHER)
        self._saver.save(self._step, lambda: self._state(summary), self._manifest)
        self._phases.lap(Phase.CHECKPOINT)

    def _state(self, summary: Summary | None) -> dict[str, Any]:
        """All that a run is made of; tensors and plain values only."""
        epoch = self._plan.epoch_of(self._step)
        return {
            "model": self._model.state_dict(),
            "optimizer": self._optimization.state_dict(),
            "loss_scale": self._optimization.loss_scale_state(),
            "guard": self._guard.state_dict(),
            # The learning rate is a function of the step, and random streams are keyed: these are for the reader.
            "schedule": {"name": str(self._config.schedule), "peak": self._config.learning_rate},
            "random": {"algorithm": ALGORITHM, "keyed_by": ["seed", "stream", "step", "shard"]},
            "cursor": {"seed": self._config.seed, "epoch": epoch, "step": self._step},
            "ledger": self._ledger.state_dict(),
            "data": self._feed.state_dict(),
            "watch": self._watch.state_dict(),
            "computed_on": self._computed_on(),
            "time": {
                "productive": self._productive_before + self._phases.productive,
                "first_start": self._reading.first_start,
            },
            "summary": None if summary is None else summary.to_dict(),
        }

    def _manifest(self) -> Manifest:
        """What will stand beside the payload, but for the digest and size of that."""
        return Manifest(
            identity=self._identity,
            step=self._step,
            epoch=self._plan.epoch_of(self._step),
            shards=self._plan.shards,
            generation=self._env.generation,
            run_id=self._env.run_id,
            world_size=self._group.world_size,
            sha256="",
            size_bytes=0,
            written_at=time.time(),
            torch=torch.__version__,
            metrics=self._watch.metrics_after(self._step),
        )

    def _stopped(self) -> Outcome:
        if self._saver.saved_step != self._step:
            self._save(None)
        self._settle()
        saved = "saved" if self._config.checkpoint_dir is not None and self._saver.failure is None else "nothing saved"
        self._progress.note(f"Told to stop: left after step {self._step} of {self._plan.total_steps}, {saved}.")
        code = self._stop.exit_code if self._stop.exit_code is not None else Exit.TERMINATED
        return Outcome(self._summary(Result.STOPPED, {}), code)

    def _succeeded(self) -> Outcome:
        metrics = self._watch.metrics_after(self._step)
        if metrics is None:
            metrics = self._evaluate()
            self._watch.evaluated(self._step, metrics)
        summary = self._summary(Result.SUCCEEDED, metrics)
        self._save(summary)
        self._settle()
        if self._config.level is Level.EXACT:
            self._tell_digest()
        # With a volume per pod, one copy is enough. Ranks also wait here for each other's saves.
        copies = sum(self._group.gather(self._saver.holds(self._step)))
        error = None if copies else self._saver.not_written(self._step)
        return Outcome(summary, Exit.SUCCESS if error is None else error.exit_code, error)

    def _computed_on(self) -> str:
        """What the bits depend on besides the run; empty where none are promised."""
        if self._config.level is not Level.EXACT:
            return ""
        from ddp_trainer.train.exact.kin import kind_of_machine  # noqa: PLC0415 - few runs need it

        return kind_of_machine(self._group.device)

    def _tell_change(self, before: str) -> None:
        if self._config.level is Level.EXACT:
            from ddp_trainer.train.exact.kin import change  # noqa: PLC0415 - few runs need it

            if (told := change(before, self._computed_on())) is not None:
                self._progress.note(told)

    def _tell_digest(self) -> None:
        from ddp_trainer.train.exact.digest import sha256  # noqa: PLC0415 - few runs need it

        digest = sha256([self._model.state_dict(), self._optimization.state_dict()])
        self._progress.note(f"Weights and optimizer have the SHA-256 {digest}.")

    def _settle(self) -> None:
        self._saver.settle()
        self._phases.lap(Phase.CHECKPOINT)

    def _summary(self, result: Result, metrics: dict[str, float]) -> Summary:
        seconds = max(time.time() - self._reading.first_start, 1e-9)
        productive = self._productive_before + self._phases.productive
        return Summary(
            result=result,
            task=self._task.name,
            steps=self._step,
            epochs=round(self._step / self._plan.steps_per_epoch, 4),
            accuracy=metrics.get("accuracy"),
            loss=metrics.get("loss", self._loss),
            metrics=metrics,
            best=self._watch.best_of_run(),
            stopped_early=self._watch.has_waited_enough and self._step < self._plan.total_steps,
            samples_lost=self._ledger.lost,
            samples_repeated=self._ledger.repeated,
            samples_skipped=self._ledger.skipped,
            lost_steps=self._reading.lost_steps,
            skipped_steps=self._guard.skipped,
            rollbacks=self._guard.rollbacks,
            restarts=dict(self._env.restarts),
            goodput=round(min(productive / seconds, 1.0), 4),
            seconds=round(seconds, 3),
            world_size=self._group.world_size,
            global_batch=self._config.global_batch,
            shards=self._plan.shards,
            seed=self._config.seed,
            generation=self._env.generation,
        )
