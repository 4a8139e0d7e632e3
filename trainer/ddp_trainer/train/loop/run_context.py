"""Context of a training process, and the parts of a run that exist before any checkpoint is read.

:class:`ProcessContext` holds environment, group, outputs and the channel to the launcher, in one worker group.
:func:`build_context` builds samples, initial weights and the identity of the run as a :class:`RunContext`. :func:`draw`
builds the model from the seed, and :func:`draw_without_weights` the model of a rank that receives its weights.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import nn

from ddp_trainer.process.recorder import NoopRankRecorder, RankRecorder
from ddp_trainer.train.checkpoint.manifest import Identity, architecture, signature
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import BackendName, Level, StrategyName
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.batch_reader import data_digest, is_stream
from ddp_trainer.train.data.keyed_rng import KeyedRng, Stream
from ddp_trainer.train.data.loaders.base import Skips, Stateful
from ddp_trainer.train.data.loaders.factory import known_count
from ddp_trainer.train.data.sample_order import order_of_new_run
from ddp_trainer.train.data.task import Samples, SupportsWeightInit, Task
from ddp_trainer.train.deferred_init.skip_init import SkipInit
from ddp_trainer.train.distributed.agent_channel import Control
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.stop_signals import StopRequest
from ddp_trainer.train.evaluation.early_stopping import EvaluationTracker
from ddp_trainer.train.loop.nonfinite_policy import Guard
from ddp_trainer.train.loop.user_loop import UserTask
from ddp_trainer.train.observability.console import Progress
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadTask


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessContext:
    """What a run depends on besides its flags and its task: environment, group, outputs and stop requests."""

    env: Environment
    group: Group
    recorder: RankRecorder
    progress: Progress
    stop: StopRequest
    began: float
    """Start of this process, in seconds since the Unix epoch; imports count as lost time."""
    control: Control | None = None
    """The channel to the launcher; None without a launcher."""

    @classmethod
    def outside_groups(
        cls, env: Environment, progress: Progress, stop: StopRequest, began: float, control: Control | None
    ) -> Self:
        """Return the context of a process that has not joined a group.

        Args:
            env: Environment of the process.
            progress: Console output.
            stop: Stop requests to the process.
            began: Start of the process, in seconds since the Unix epoch.
            control: Channel to the launcher; None without a launcher.
        """
        recorder, group = NoopRankRecorder(), Group.single_rank()
        return cls(env=env, group=group, recorder=recorder, progress=progress, stop=stop, began=began, control=control)

    def begin_training(self) -> None:
        """Mark the start of training: from now on stop and regroup requests wait for the end of the step."""
        self.stop.begin_training()
        if self.control is not None:
            self.control.begin_training()


@dataclass(slots=True, kw_only=True, eq=False)
class RunContext:
    """Parts of a run that do not depend on the number of batch slices."""

    config: Config
    task: Task
    process: ProcessContext
    samples: Samples | Iterable[Any]
    model: nn.Module
    """The model, initialized from the seed on the CPU, or still on the meta device."""
    has_weights: bool
    """False if the weights are not filled; they must be loaded, or the model drawn again."""
    identity: Identity
    timer: StepTimer
    watch: EvaluationTracker
    guard: Guard
    on_skip: Skips

    def enter(self, process: ProcessContext) -> None:
        """Switch to the context of this process in a worker group."""
        self.process = process
        if not isinstance(self.task, UserTask):  # the steps of a user-written loop have no sections
            self.timer.marks = process.recorder.marks

    @property
    def can_join_next_group(self) -> bool:
        """True if this process can join the next worker group with its current state.

        It is False in five cases, in which a new process starts from a checkpoint:

        - Ranks hold different states between synchronizations (local SGD).
        - Layers are bound to a group (synchronized batch norm).
        - Samples come from a stream or a stateful data set, which cannot be rewound.
        - The backend is MPI, which can be initialized only once per process.
        - The group uses NCCL without ``--survive-on-nccl``.
        """
        config = self.config
        has_one_state = config.strategy is not StrategyName.LOCAL_SGD or config.level is Level.EXACT
        reads_anywhere = not is_stream(self.samples) and not isinstance(self.samples, Stateful)
        is_bound = config.sync_batchnorm or config.backend is BackendName.MPI
        return has_one_state and reads_anywhere and not is_bound and self.process.group.can_survive_group_end


def draw(config: Config, task: Task, around: ProcessContext) -> nn.Module:
    """Return the model of a run: initialized from the seed, or on the meta device if the task has ``init_weight``.

    Args:
        config: Options of the run.
        task: Task whose model is created.
        around: Context of the process, for messages.

    Raises:
        BadTask: The model cannot be moved to the device of a rank.
    """
    KeyedRng(config.seed, torch.device("cpu")).enter(Stream.WEIGHTS)
    is_deferred = isinstance(task, SupportsWeightInit)
    with ExitStack() as contexts:
        if is_deferred:
            contexts.enter_context(torch.device("meta"))
        if is_deferred and not config.compile:  # torch's functions that fill weights on meta look for the compiler
            contexts.enter_context(uncompiled())
        model = task.model()
    check_model_devices(model, task.name, spreads=config.is_model_sharded, is_deferred=is_deferred)
    make_contiguous(model, spreads=config.is_model_sharded)
    if config.is_model_sharded and not is_deferred:
        around.progress.log_message("Each rank builds the whole model before it is cut: the task has no init_weight.")
    return model


def draw_without_weights(config: Config, task: Task, around: ProcessContext) -> tuple[nn.Module, bool]:
    """Return the model of a run without filled weights, and False.

    Return it with its weights, and True, if they come later anyway, if the state dict has not all of them, or if the
    rest of the model depends on their values.
    """
    if not (config.is_model_sharded or isinstance(task, SupportsWeightInit | UserTask)):
        KeyedRng(config.seed, torch.device("cpu")).enter(Stream.WEIGHTS)
        with contextlib.suppress(Exception):  # as of a model that checks its own weights
            with SkipInit() as skips:
                model = task.model()
            is_on_cpu = all(tensor.device.type == "cpu" for tensor in (*model.parameters(), *model.buffers()))
            if is_on_cpu and skips.is_exact(model):
                make_contiguous(model, spreads=False)
                return model, False
    return draw(config, task, around), True


def build_context(config: Config, task: Task, around: ProcessContext) -> RunContext:
    """Build the context of a run from the task's samples and model.

    Args:
        config: Options of the run.
        task: Task of the run.
        around: Context of the process.
    """
    samples = task.train_samples()
    # Usually, other ranks train already and send the weights; if none does, they are drawn later.
    receives = around.env.generation > 1 or (around.control is not None and around.control.stands_by)
    model, has_weights = draw_without_weights(config, task, around) if receives else (draw(config, task, around), True)
    return RunContext(
        config=config,
        task=task,
        process=around,
        samples=samples,
        model=model,
        has_weights=has_weights,
        identity=Identity(
            task=task.name,
            model=signature(model),
            data=data_digest(task, samples),
            samples=known_count(samples),
            seed=config.seed,
            global_batch=config.global_batch,
            order=order_of_new_run(known_count(samples)),
            architecture=architecture(model),
        ),
        timer=StepTimer(time.monotonic),
        watch=EvaluationTracker(config),
        guard=Guard(config, around.progress.log_message),
        on_skip=Skips(around.progress.warn_rank),
    )


def check_model_devices(model: nn.Module, task: str, *, spreads: bool, is_deferred: bool = False) -> None:
    """Check that a model can be moved to the device of a rank.

    Args:
        model: The model.
        task: Name of the task, for the message.
        spreads: The model is distributed over ranks.
        is_deferred: The model is initialized later, and has no memory yet.

    Raises:
        BadTask: A weight or buffer is on the meta device, or none may be and one is not. A distributed model is on
            several devices.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    wrong = next((name for name, tensor in tensors.items() if tensor.is_meta is not is_deferred), None)
    if wrong is not None and is_deferred:
        raise BadTask(
            f"The task {task!r} has an init_weight, and its model has {wrong} on {tensors[wrong].device} instead of "
            "torch's meta device.",
            hint="Let model() name no device, and give numbers in init_weight alone.",
        )
    if wrong is not None:
        raise BadTask(
            f"The model of the task {task!r} has no numbers in {wrong}, which is on torch's meta device.",
            hint="Let model() build it on the CPU.",
        )
    devices = sorted({str(tensor.device) for tensor in tensors.values()})
    if spreads and len(devices) > 1:
        raise BadTask(
            f"The model of the task {task!r} is on {' and '.join(devices)}, and each of its ranks has one device.",
            hint="Let model() build it on the CPU.",
        )


def make_contiguous(model: nn.Module, *, spreads: bool) -> None:
    """Make all strided buffers of a model contiguous, in place.

    A buffer may be a view of another tensor, a transpose, or one row expanded to many (``expand``). A collective cannot
    write received data into such a buffer, and torch's ``fully_shard`` rejects such weights. Values do not change.

    Args:
        model: The model to change.
        spreads: Also make the weights contiguous, because the ranks share one model.
    """
    for tensor in [*model.buffers(), *(model.parameters() if spreads else ())]:
        if tensor.layout is torch.strided:
            tensor.data = tensor.data.contiguous()
