"""Elastic training of a user-written loop: exactly-once samples, checkpoints, SIGTERM handling and metrics.

The user's loop computes losses; :class:`ElasticLoop` does everything else of a step. It uses the same plan, vote,
sample account, checkpoints and summary as :mod:`ddp_trainer.train.trainer` uses for a task. The model is not wrapped:
gradients are added up over ranks at the end of the step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ddp_trainer.common.constants import Exit, Phase
from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.train.api import make_progress, shown, with_defaults
from ddp_trainer.train.checkpoint.checkpoint_factory import make_odometer, make_saver, renew_saver
from ddp_trainer.train.checkpoint.checkpoint_files import Checkpoint, copied, unpack
from ddp_trainer.train.checkpoint.checkpoint_manager import CheckpointManager
from ddp_trainer.train.checkpoint.manifest import Manifest, demand_same
from ddp_trainer.train.checkpoint.resume_source import find_state, progress_key
from ddp_trainer.train.checkpoint.snapshot import state_bytes
from ddp_trainer.train.checkpoint.summary import Result, Summary
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.batch_plan import BatchPlan, digest, owned
from ddp_trainer.train.data.batch_reader import reader
from ddp_trainer.train.data.keyed_rng import KeyedRandom
from ddp_trainer.train.data.sample_tracker import SampleTracker
from ddp_trainer.train.data.task import Samples
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.distributed.device_selection import limit_threads
from ddp_trainer.train.distributed.grad_allreduce import add_up
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.stop_signals import StopRequest, leave_at_once
from ddp_trainer.train.elastic_parts import OwnParts, identity_of, plan_of
from ddp_trainer.train.elastic_step import Step, StepParts
from ddp_trainer.train.exact.buffer_sync import SharedBuffers
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
from ddp_trainer.train.loop.step_consensus import StepDecision, StepReport, check, vote
from ddp_trainer.train.observability.run_banner import started
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.parallel.rank_collectives import send_from_first
from ddp_trainer.train.recovery.group_transition import GroupTransition
from ddp_trainer.train.utils.error_file import leave_group
from ddp_trainer.train.utils.errors import GroupEnds, NotFinite, PeerLost, StaleGeneration


class ElasticLoop:
    """One process's part of a run: a context manager, and inside it an iterable of steps."""

    _group: Group
    _plan: BatchPlan
    _saver: CheckpointManager
    _recorder: RankRecorder

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        samples: Samples,
        config: Config,
        *,
        scheduler: LRScheduler | None,
        recorder: Callable[[], RankRecorder],
        env: Environment,
        control: Control | None = None,
    ) -> None:
        """Prepare the run; entering the context joins the group.

        Args:
            model: The model; it is moved to this rank's device.
            optimizer: The optimizer of its weights.
            samples: The training samples.
            config: The configuration.
            scheduler: The learning-rate scheduler; None without one.
            recorder: Makes the recorder of metrics; called once the rank is known.
            env: This process's place in the group.
            control: The channel to the launcher; None without a launcher.
        """
        self._began = time.time()
        self._own = OwnParts(model, optimizer, scheduler)
        self._samples, self._make_recorder, self._env = samples, recorder, env
        self._config = with_defaults(config, env)
        self._progress = make_progress(self._config, env)
        self._stop = StopRequest(grace_seconds=env.grace_seconds, leave=leave_at_once)
        self._control = control
        self._passage = GroupTransition(self._config, control, self._stop, can_stay=True)
        self._phases = StepTimer(time.perf_counter)
        self._history = GoodputTracker(self._phases)
        self._has_saver = self._has_state = False
        self._open = ExitStack()
        self._rate = 0.0
        self.step = 0
        """Number of committed global steps."""
        self.loss: float | None = None
        """Mean loss of the last committed step over all ranks; None before the first step."""

    def __enter__(self) -> Self:
        self._open.enter_context(self._stop.listening())
        self._open.enter_context(closing(self._progress))
        self._open.callback(self._passage.close)
        try:
            limit_threads(self._env)
            self._enter(self._passage.first(self._env))
        except BaseException as err:
            self.__exit__(type(err), err, err.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(err, Exception) and self._env.world_size > 1:
            leave_group(err, self._env.error_file)
        self._open.close()

    def __iter__(self) -> Iterator[Step]:
        while True:
            try:
                if self.step >= self._plan.total_steps:
                    self._finish()
                    return
                self._forget()
                step = Step(self.step, self._parts)
                yield step
                self._commit(step)
            except PeerLost as err:
                ended = self._survived(err)
            else:
                continue
            self._enter(self._passage.next(ended))

    @property
    def device(self) -> torch.device:
        """Device of the model and of every batch."""
        return self._group.device

    @property
    def rank(self) -> int:
        """Rank of this process; only rank 0 prints and writes files."""
        return self._group.rank

    @property
    def world_size(self) -> int:
        """Number of ranks that share each step."""
        return self._group.world_size

    @property
    def summary(self) -> Summary:
        """Summary of the run so far."""
        finished = self.step >= self._plan.total_steps
        return Summary(
            result=Result.SUCCEEDED if finished else Result.STOPPED,
            task=self._config.task,
            steps=self.step,
            epochs=round(self.step / self._plan.steps_per_epoch, 4),
            accuracy=None,
            loss=self.loss,
            samples_lost=self._ledger.lost,
            samples_repeated=self._ledger.repeated,
            restarts=dict(self._env.restarts),
            **self._history.summary(),
            world_size=self.world_size,
            global_batch=self._config.global_batch,
            shards=self._plan.shards,
            seed=self._config.seed,
            generation=self._env.generation,
        )

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over ranks, for custom metrics; every rank must call it."""
        return self._group.sum(tensor.detach().clone().to(self.device))

    def _enter(self, env: Environment | None) -> None:
        """Join a group and resume; if the group ends before training starts, join the next one."""
        while env is not None:
            try:
                self._join(env)
                self._resume()
            except PeerLost as err:
                ended = self._survived(err)
            else:
                return
            env = self._passage.next(ended)
        self._leave()

    def _survived(self, err: PeerLost) -> PeerLost:
        """Drop the uncommitted step of an ended group; raise ``err`` if this process cannot join another group."""
        if not self._passage.is_open:
            raise err
        self._passage.free_device(err)
        if self._has_state:
            self._parts.buffers.discard()
            self._own.forget()
        return err.alone()

    def _join(self, env: Environment) -> None:
        """Join the other ranks, and build what depends on the group."""
        config = self._config
        self._env = env
        self._progress.show(*shown(config, env))
        self._group = self._passage.join(env)
        if not self._has_saver:
            self._recorder = self._make_recorder()
        self._recorder.identity(
            rank=env.rank,
            local_rank=env.local_rank,
            world_size=env.world_size,
            backend=self._group.backend,
            device=str(self._group.device),
        )
        self._recorder.job(precision=f"{self._own.weights[0].dtype}".removeprefix("torch."), parallelism="manual")
        self._own.to(self._group.device)
        if not self._has_saver:
            self._identity = identity_of(self._own.model, self._samples, config)
            self._open.callback(lambda: self._group.close())  # noqa: PLW0108 - the group may change until then
        if not self._has_saver or not renew_saver(self._saver, config, env, self._group):
            self._saver = make_saver(config, env, self._group, self._recorder, self._progress)
            self._has_saver = True
            self._open.enter_context(self._saver)
            self._saver.open()

    def _resume(self) -> None:
        """Resume from the state of a rank, else from the newest checkpoint of any rank, else with rank 0's weights."""
        config, group = self._config, self._group
        began = time.perf_counter()
        self._history.restoring()
        where = f"in {config.checkpoint_dir}"
        checkpoint, is_durable = find_state(
            group,
            progress_key(self.step) if self._has_state else None,
            copy=self._copy,
            newest=self._saver.newest,
            demand=lambda manifest: demand_same(manifest, self._identity, where=where, shards=config.shards),
        )
        odometer = make_odometer(config, self._env, self._identity, self._progress.alarm)
        self._history.recall(odometer, self._recorder, group, self._began, self._env)
        if not self._has_state:
            stored_shards = None if checkpoint is None else checkpoint.manifest.shards
            self._plan = plan_of(self._samples, config, self._env, stored_shards)
            self._ledger = SampleTracker(self._plan.samples)
        if checkpoint is not None:
            self._load(unpack(checkpoint))
            self._saver.saved_step = self.step if is_durable else None
            self._recorder.checkpoint_loaded(time.perf_counter() - began)
        elif group.world_size > 1 and not self._has_state:
            send_from_first(self._own.tensors, group)
        group.confirm()
        self._has_state = True
        self._history.go_on_from(self.step)
        self._history.restored(loaded=checkpoint is not None)
        self._saver.reserve(state_bytes(self._own.model, self._plan.samples))
        self._parts = StepParts(
            self._plan,
            owned(self._plan.shards, group.world_size, group.rank),
            reader(self._samples),
            KeyedRandom(config.seed, group.device),
            SharedBuffers(self._own.model, group),
            self._phases,
            group.device,
        )
        self._announce()
        self._stop.training_begins()
        if self._control is not None:
            self._control.training_begins()
        self._phases.restart()
        self._history.begin()

    def _copy(self) -> Checkpoint:
        return copied(self._state(None), self._manifest())

    def _announce(self) -> None:
        self._recorder.planned(self._plan.total_steps)
        self._progress.begin(self.step)
        self._progress.tell(started(self._config.task, self._own.model, self._plan, self._group, step=self.step))

    def _forget(self) -> None:
        self._own.forget()
        self._group.activity = f"in step {self.step}"
        self._saver.poll()

    def _commit(self, step: Step) -> None:
        """Commit the step on all ranks, or on none."""
        self._phases.lap(Phase.OTHER)
        verdict = self._agreed(step)
        self._parts.buffers.commit()
        self._rate = self._own.learning_rate
        self._own.move(self._config.clip_norm)
        self._ledger.commit(step.batch_ids)
        if self._plan.ends_epoch(step.number):
            self._ledger.close_epoch()
        self._phases.lap(Phase.OPTIMIZER)
        self.step += 1
        self._history.reached(self.step, verdict.time)
        self._report(step, verdict)
        if verdict.stop:
            ended = GroupEnds(f"The group ended after step {self.step}, as all ranks agreed.")
            if self._passage.is_open and not self._stop.requested:
                raise ended
            if self._control is not None:
                self._control.leave(ended, stays=False)  # so that the others do not wait for this rank's save
            self._leave()
        elif self.step < self._plan.total_steps and self._saver.is_due(self.step, asked=bool(verdict.save)):
            self._save(None)

    def _agreed(self, step: Step) -> StepDecision:
        """Add up gradients and return the decision of the vote.

        Raises:
            PeerFailed: See :func:`ddp_trainer.train.loop.step_consensus.check`.
            WrongSamples: See :func:`ddp_trainer.train.loop.step_consensus.check`.
            NotFinite: The loss is not finite.
        """
        add_up(self._own.weights, self._group)
        self._parts.buffers.gather()
        ballot = StepReport(
            samples=sum(len(ids) for ids in step.own_ids),
            digest=sum(digest(ids) for ids in step.own_ids),
            loss=step.loss,
            stop=self._stop.requested or (self._control is not None and self._control.asked),
            save=self._saver.wants_save(),
            time=self._history.word(),
        )
        verdict = vote(ballot, self._group)
        self._phases.lap(Phase.COMM_EXPOSED)
        check(verdict, step=step.number, samples=len(step.batch_ids), digest=digest(step.batch_ids))
        if not math.isfinite(verdict.loss):
            raise NotFinite(f"The loss of step {step.number} is {verdict.loss}.", hint="Lower the learning rate.")
        return verdict

    def _report(self, step: Step, verdict: StepDecision) -> None:
        self.loss = verdict.loss / verdict.samples
        self._phases.report(self._recorder, step=self.step, epoch=step.epoch, samples=sum(map(len, step.own_ids)))
        self._recorder.progress(self.loss, self._rate)
        self._progress.step(
            step=self.step,
            steps=self._plan.total_steps,
            epoch=step.epoch + 1,
            samples=verdict.samples,
            loss=self.loss,
            learning_rate=self._rate,
        )

    def _leave(self) -> None:
        """Save, and end the user's loop by raising SystemExit."""
        try:
            if self._saver.saved_step != self.step:
                self._save(None)
            self._saver.settle()
            self._history.leave()
        except StaleGeneration:
            if self._control is None:
                raise  # with a launcher, the other ranks may be in a newer group already
        self._progress.note(f"Told to stop: left after step {self.step} of {self._plan.total_steps}.")
        raise SystemExit(self._stop.exit_code if self._stop.exit_code is not None else int(Exit.TERMINATED))

    def _finish(self) -> None:
        """Save and write the summary, after the last step was committed by this process or an earlier one."""
        if self._saver.saved_step != self.step:
            self._save(self.summary)
        self._saver.settle()
        self._history.finish()
        copies = sum(self._group.gather(self._saver.holds(self.step)))
        error = None if copies else self._saver.not_written(self.step)
        if self.rank == 0 and self._config.summary is not None:
            try:
                self.summary.write(self._config.summary)
            except OSError as err:
                self._progress.note(f"The summary could not be written to {self._config.summary}: {err.strerror}.")
        if error is not None:
            raise error

    def _save(self, summary: Summary | None) -> None:
        self._phases.lap(Phase.OTHER)
        self._saver.save(self.step, lambda: self._state(summary), self._manifest)
        self._phases.lap(Phase.CHECKPOINT)

    def _state(self, summary: Summary | None) -> dict[str, Any]:
        return {
            **self._own.state_dict(),
            "cursor": {"seed": self._config.seed, "epoch": self._plan.epoch_of(self.step), "step": self.step},
            "ledger": self._ledger.state_dict(),
            "time": self._history.state_dict(),
            "summary": None if summary is None else summary.to_dict(),
        }

    def _load(self, state: dict[str, Any]) -> None:
        self._own.load_state_dict(
            {"model": state["model"], "optimizer": state["optimizer"], "scheduler": state["scheduler"]}
        )
        self._ledger.load_state_dict(state["ledger"])
        self.step = state["cursor"]["step"]
        self._history.load_state_dict(state["time"])
        if state["summary"] is not None:
            self._saver.durable_step = self.step
            self.loss = state["summary"]["loss"]

    def _manifest(self) -> Manifest:
        return Manifest(
            identity=self._identity,
            step=self.step,
            epoch=self._plan.epoch_of(self.step),
            shards=self._plan.shards,
            generation=self._env.generation,
            run_id=self._env.run_id,
            world_size=self.world_size,
            sha256="",
            size_bytes=0,
            written_at=time.time(),
            torch=torch.__version__,
        )
