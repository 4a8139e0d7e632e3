"""The parts of a run that stand before any checkpoint is read: samples, weights, and what tells the run from others."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from ddp_trainer.train.checkpoint.manifest import Identity, architecture, signature
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.options import BackendName, Level, StrategyName
from ddp_trainer.train.data.batch_reader import data_digest, is_stream
from ddp_trainer.train.data.keyed_rng import KeyedRandom, Stream
from ddp_trainer.train.data.loaders.bad_samples import Skips
from ddp_trainer.train.data.loaders.base import Stateful
from ddp_trainer.train.data.loaders.factory import known_count
from ddp_trainer.train.data.task import Samples, Task
from ddp_trainer.train.deferred_init.init_replay import InitRecipe
from ddp_trainer.train.evaluation.early_stopping import Watch
from ddp_trainer.train.loop.nonfinite_policy import Guard
from ddp_trainer.train.loop.process_context import ProcessContext
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.utils.contiguous import lay_out
from ddp_trainer.train.utils.errors import BadTask
from ddp_trainer.train.utils.gc_control import uncollected
from ddp_trainer.train.utils.splitmix import ALGORITHM

if TYPE_CHECKING:
    from ddp_trainer.train.deferred_init.op_recording import DeferredInit


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext:
    """What does not depend on how a batch is cut."""

    config: Config
    task: Task
    around: ProcessContext
    samples: Samples | Iterable[Any]
    model: nn.Module
    """Drawn from the seed, on the CPU; but for the weights of these recipes, which have no memory yet."""
    recipes: Mapping[Tensor, InitRecipe]
    identity: Identity
    phases: StepTimer
    watch: Watch
    guard: Guard
    skips: Skips

    @property
    def can_stay(self) -> bool:
        """Whether this process could go on in another worker group with what it holds.

        Not where ranks hold states of their own between synchronisations, where layers are bound to a group, where
        samples come in an order that cannot be gone back in, with MPI, which begins once in a process, or in an NCCL
        group without ``--survive-on-nccl``: its successor then starts from a checkpoint.
        """
        config = self.config
        has_one_state = config.strategy is not StrategyName.LOCAL_SGD or config.level is Level.EXACT
        reads_anywhere = not is_stream(self.samples) and not isinstance(self.samples, Stateful)
        is_bound = config.sync_batchnorm or config.backend is BackendName.MPI
        return has_one_state and reads_anywhere and not is_bound and self.around.group.may_be_outlived


class Drawn(NamedTuple):
    """A model with the weights that a seed gives it, on the CPU."""

    model: nn.Module
    recipes: Mapping[Tensor, InitRecipe]
    """Of the weights that are on torch's meta device, and are made when they are wanted."""
    why_whole: str = ""
    """Why there are none, though they were asked for."""


def draw_model(task: Task, seed: int, *, spreads: bool = False) -> Drawn:
    """The task's model; one that ``spreads`` without the memory of large weights, if it is built so that it can be."""
    random = KeyedRandom(seed, torch.device("cpu"))
    why = ""
    if spreads:
        from ddp_trainer.train.deferred_init.op_recording import DeferredInit  # noqa: PLC0415 - of spread models alone

        random.enter(Stream.WEIGHTS)
        recording = DeferredInit()
        try:
            return _recorded(task, recording)
        except Exception as err:  # noqa: BLE001 - what is wrong with the model itself, it says again below
            why = str(err).strip().split("\n", 1)[0]
        recording.abandon()
    random.enter(Stream.WEIGHTS)
    return Drawn(task.model(), {}, why)


def _recorded(task: Task, recording: DeferredInit) -> Drawn:
    with uncollected():  # a recording looks for what was made meanwhile
        with recording:
            model = task.model()
        return Drawn(model, recording.recipes(model))


def draw(config: Config, task: Task, around: ProcessContext) -> tuple[nn.Module, Mapping[Tensor, InitRecipe]]:
    """The model of a run, and the recipes of those of its weights that have no memory yet.

    Raises:
        BadTask: it cannot be brought to the device of a rank.
    """
    model, recipes, why_whole = draw_model(task, config.seed, spreads=config.spreads)
    demand_numbers(model, task.name, recipes, spreads=config.spreads)
    lay_out(model, spreads=config.spreads)
    if why_whole:
        around.progress.note(f"Each rank draws the whole model before it is cut: {why_whole}")
    return model, recipes


def build_context(config: Config, task: Task, around: ProcessContext) -> RunContext:
    """Ask the task for its samples and its model."""
    samples = task.train_samples()
    model, recipes = draw(config, task, around)
    return RunContext(
        config=config,
        task=task,
        around=around,
        samples=samples,
        model=model,
        recipes=recipes,
        identity=Identity(
            task=task.name,
            model=signature(model),
            data=data_digest(task, samples),
            samples=known_count(samples),
            seed=config.seed,
            global_batch=config.global_batch,
            order=ALGORITHM,
            architecture=architecture(model),
        ),
        phases=StepTimer(time.monotonic, around.recorder.marks),
        watch=Watch(config),
        guard=Guard(config, around.progress.note),
        skips=Skips(around.progress.alarm),
    )


def demand_numbers(
    model: nn.Module, task: str, recipes: Mapping[Tensor, InitRecipe] = MappingProxyType({}), *, spreads: bool
) -> None:
    """Refuse a model that cannot be brought to the device of a rank; one that ``spreads``, in pieces.

    Weights of which there are ``recipes`` are as good as on the CPU.

    Raises:
        BadTask: weights are on the meta device, or on several.
    """
    weights = {name: weight for name, weight in model.named_parameters() if weight not in recipes}
    tensors = {**weights, **dict(model.named_buffers())}
    empty = next((name for name, tensor in tensors.items() if tensor.is_meta), None)
    if empty is not None:
        raise BadTask(
            f"The model of the task {task!r} has no numbers in {empty}, which is on torch's meta device.",
            hint="Let model() build it on the CPU.",
        )
    devices = sorted({*(str(tensor.device) for tensor in tensors.values()), *(["cpu"] if recipes else [])})
    if spreads and len(devices) > 1:
        raise BadTask(
            f"The model of the task {task!r} is on {' and '.join(devices)}, and each of its ranks has one device.",
            hint="Let model() build it on the CPU.",
        )
