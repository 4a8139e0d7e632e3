"""Elastic training of a user-written loop: exactly-once samples, checkpoints, SIGTERM handling and metrics.

The user's loop computes losses; :class:`ElasticLoop` does everything else, by driving a
:class:`~ddp_trainer.train.trainer.Trainer` step by step. The model is not wrapped: gradients are added up over ranks at
the end of the step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from types import TracebackType
from typing import Final, NoReturn, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from ddp_trainer.common.time_classes import Phase
from ddp_trainer.process.recorder import RankRecorder
from ddp_trainer.train import api
from ddp_trainer.train.checkpoint.summary import Outcome, Result, Summary
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.batch_plan import StepPlan, digest
from ddp_trainer.train.data.task import Batch, Samples
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.distributed.device_selection import limit_threads
from ddp_trainer.train.distributed.stop_signals import StopRequest, exit_immediately
from ddp_trainer.train.loop.group_components import GroupComponents
from ddp_trainer.train.loop.run_context import ProcessContext
from ddp_trainer.train.loop.train_state import TrainState
from ddp_trainer.train.loop.user_loop import UserTask
from ddp_trainer.train.recovery.group_transition import GroupTransition
from ddp_trainer.train.step import StepResult, fetch_slice, seed_slice_rng
from ddp_trainer.train.trainer import Trainer
from ddp_trainer.train.utils.errors import BadConfig, BadTask, PeerLost, exit_without_teardown

_WRAPPERS: Final = {"DistributedDataParallel", "FSDPModule", "FullyShardedDataParallel"}
"""Names of the classes that a model may not have. An import of FSDP would cost each start."""


class ElasticLoop:
    """One process's part of a run: a context manager, and inside it an iterable of steps."""

    _trainer: Trainer
    _transition: GroupTransition

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
        self._config = api.with_defaults(config, env)
        self._task = UserTask(config.task, model, optimizer, samples, scheduler)
        precision = str(optimizer.param_groups[0]["params"][0].dtype).removeprefix("torch.")
        self._labels = {"precision": precision, "parallelism": "manual"}
        self._make_recorder = recorder
        stop = StopRequest(grace_seconds=env.grace_seconds, leave=exit_immediately)
        progress = api.make_progress(self._config, env)
        self._process = ProcessContext.outside_groups(env, progress, stop, time.time(), control)
        self._outcome: Outcome | None = None
        self._open = ExitStack()

    def __enter__(self) -> Self:
        process, config = self._process, self._config
        self._open.enter_context(process.stop.handle_signals())
        self._open.enter_context(closing(process.progress))
        try:
            _require_unsharded_model(config)
            _require_plain_model(self._task.model())
            limit_threads(process.env)
            with torch.random.fork_rng(devices=[]):  # the trainer seeds it to build a model
                trainer = Trainer(replace(config, parallel=None), self._task, process)
            self._transition = GroupTransition(
                config, process.control, process.stop, can_stay=trainer.can_join_next_group
            )
            self._open.callback(self._transition.close)
            self._open.callback(lambda: self._process.group.close())  # noqa: PLW0108 - the group may change until then
            self._trainer = self._open.enter_context(trainer)
            self._start(self._transition.first(process.env))
        except BaseException as err:
            self.__exit__(type(err), err, err.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        env = self._process.env
        if isinstance(err, Exception) and env.world_size > 1:
            exit_without_teardown(err, env.error_file)
        self._open.close()

    def __iter__(self) -> Iterator[Step]:
        trainer = self._trainer
        while self._outcome is None:
            try:
                if trainer.is_done:
                    self._outcome = trainer.finish()
                    break
                step = Step(trainer.start_step(), trainer.state, trainer.components)
                yield step
                if trainer.end_step(step.step_plan, step.result):
                    self._exit(trainer.end_group())
            except PeerLost as err:
                ended = api.release_ended_group(self._transition, self._process.group, err)
            else:
                continue
            self._teardown_group()
            self._start(self._transition.next(ended))
        if self._process.env.local_rank == 0:
            api.publish_summary(self._outcome, self._config, self._process.progress)
        if self._outcome.error is not None:
            raise self._outcome.error

    def _start(self, env: Environment | None) -> None:
        """Join a group and resume; if the group ends before training starts, join the next one."""
        while env is not None:
            before = self._process
            try:
                self._process = api.join_group(
                    before, env, self._transition, self._config, self._make_recorder, self._labels
                )
                self._outcome = self._trainer.start(self._process)
            except PeerLost as err:
                ended = api.release_ended_group(
                    self._transition, None if self._process is before else self._process.group, err
                )
            else:
                return
            self._teardown_group()
            env = self._transition.next(ended)
        self._exit(self._trainer.stop())

    def _teardown_group(self) -> None:
        self._trainer.teardown_group(collects=False)  # the model is not wrapped, so nothing holds the group

    def _exit(self, outcome: Outcome) -> NoReturn:
        """End the user's loop after a requested stop."""
        raise SystemExit(int(outcome.exit_code))

    @property
    def step(self) -> int:
        """Number of committed global steps."""
        return self._trainer.state.step

    @property
    def loss(self) -> float | None:
        """Mean loss of the last committed step over all ranks; None before the first step."""
        loss = self._trainer.callbacks.loss
        return self._outcome.summary.loss if loss is None and self._outcome is not None else loss

    @property
    def device(self) -> torch.device:
        """Device of the model and of every batch."""
        return self._process.group.device

    @property
    def rank(self) -> int:
        """Rank of this process; only rank 0 prints and writes files."""
        return self._process.group.rank

    @property
    def world_size(self) -> int:
        """Number of ranks that share each step."""
        return self._process.group.world_size

    @property
    def summary(self) -> Summary:
        """Summary of the run so far."""
        if self._outcome is not None:
            return self._outcome.summary
        return self._trainer.summary(Result.SUCCEEDED if self._trainer.is_done else Result.STOPPED)

    def sum(self, tensor: Tensor) -> Tensor:
        """Return the sum of a tensor over ranks, for custom metrics; every rank must call it.

        Args:
            tensor: Any shape and dtype that the group can reduce.
        """
        return self._process.group.sum(tensor.detach().clone().to(self.device))


def _require_plain_model(model: nn.Module) -> None:
    """Refuse a model that holds state of a process group.

    After a fault such an object computes wrong gradients without an error: DDP divides a step by the size of the old
    group, and FSDP2 does not reduce it.

    Raises:
        BadConfig: A module is wrapped.
    """
    names = {base.__name__ for module in model.modules() for base in type(module).__mro__}
    if wrapped := sorted(names & _WRAPPERS):
        raise BadConfig(
            f"elastic.run got a model with {wrapped[0]}, whose state does not survive a change of the group.",
            hint="Give it the plain model: elastic.run reduces the gradients itself.",
        )


def _require_unsharded_model(config: Config) -> None:
    if config.is_model_sharded:
        raise BadConfig(
            f"--parallel is {config.parallel}, and a custom loop holds the whole model on each rank.",
            hint="Give replicate alone, or train a task of the trainer.",
        )


class Step:
    """This rank's part of a global step: iterate over its batches, and pass the loss of each to :meth:`backward`.

    There is one batch for each batch slice that this rank owns. A rank may therefore have several batches, or none in
    the last step of an epoch.
    """

    def __init__(self, step_plan: StepPlan, state: TrainState, components: GroupComponents) -> None:
        self.number = step_plan.step
        """Number of the global step, counted from 0."""
        self.epoch = step_plan.epoch
        """Number of the epoch, counted from 0."""
        self.batch_ids = step_plan.ids
        """Ids of the samples of the whole global step."""
        self.own_ids: list[Tensor] = []
        """Ids of the samples whose loss was passed to :meth:`backward`, one tensor per batch."""
        self.step_plan = step_plan
        self.result = StepResult(loss=components.no_loss.clone())
        """Samples and losses that were passed to :meth:`backward`."""
        self._optimizer, self._components = state.optimizer, components
        self._waiting: Tensor | None = None

    def __iter__(self) -> Iterator[Batch]:
        components = self._components
        for request in self.step_plan.own:
            batch, _ = fetch_slice(components, request, self.result)
            seed_slice_rng(self.step_plan, request.slice_index, components.group.device)
            self._waiting = request.ids
            yield batch
            if self._waiting is not None:
                raise BadTask(
                    f"A batch of step {self.number} was not given to step.backward.",
                    hint="Call step.backward(loss) once for each batch.",
                )
            if components.buffers is not None:
                components.buffers.slice_done()

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of the last batch.

        The loss is weighted so that the sum over all batches is the mean over the whole global step. The result does
        not depend on the number of ranks.

        Args:
            loss: Mean loss of the batch, a scalar.

        Raises:
            BadTask: No batch is pending, or its loss was passed already.
        """
        if self._waiting is None:
            raise BadTask(
                f"step.backward was called without a batch of step {self.number}.",
                hint="Call it once for each batch, inside the loop over the step.",
            )
        ids, self._waiting = self._waiting, None
        self._components.timer.end_phase(Phase.FORWARD)
        scale = self._optimizer.loss_scale
        torch.autograd.backward((loss if scale is None else scale.up(loss)) * (len(ids) / len(self.batch_ids)))
        self._components.timer.end_phase(Phase.BACKWARD)
        self.own_ids.append(ids)
        result = self.result
        result.samples += len(ids)
        result.digest += digest(ids)
        result.loss = self.loss + loss.detach().double() * len(ids)

    @property
    def loss(self) -> Tensor:
        """Sum of the losses of those samples, a float64 scalar on the device."""
        assert self.result.loss is not None  # noqa: S101 - set at construction
        return self.result.loss
