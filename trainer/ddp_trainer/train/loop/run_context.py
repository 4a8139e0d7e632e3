"""Parts of a run that exist before any checkpoint is read: samples, initial weights and the identity of the run.

:func:`build_context` builds them as a :class:`RunContext`. :func:`draw_model` and :func:`draw` build the model from the
seed.
"""

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
    """Parts of a run that do not depend on the number of logical shards."""

    config: Config
    task: Task
    around: ProcessContext
    samples: Samples | Iterable[Any]
    model: nn.Module
    """The model, initialized from the seed on the CPU; weights that have ``recipes`` have no memory yet."""
    recipes: Mapping[Tensor, InitRecipe]
    identity: Identity
    phases: StepTimer
    watch: Watch
    guard: Guard
    skips: Skips

    @property
    def can_stay(self) -> bool:
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
        return has_one_state and reads_anywhere and not is_bound and self.around.group.may_be_outlived


class Drawn(NamedTuple):
    """A model initialized from a seed, on the CPU."""

    model: nn.Module
    recipes: Mapping[Tensor, InitRecipe]
    """How to initialize the weights that are still on torch's meta device."""
    why_whole: str = ""
    """Why deferred initialization failed, one line; empty if it succeeded or was not requested."""


def draw_model(task: Task, seed: int, *, spreads: bool = False) -> Drawn:
    """Build the task's model and initialize it from the seed.

    Args:
        task: The task.
        seed: The seed of the run.
        spreads: The model is distributed over ranks. Large weights then get no memory yet, if the construction of the
            model can be recorded.
    """
    random = KeyedRandom(seed, torch.device("cpu"))
    why = ""
    if spreads:
        from ddp_trainer.train.deferred_init.op_recording import DeferredInit  # noqa: PLC0415 - only for distributed models

        random.enter(Stream.WEIGHTS)
        recording = DeferredInit()
        try:
            return _recorded(task, recording)
        except Exception as err:  # noqa: BLE001 - an error of the model itself is raised again below
            why = str(err).strip().split("\n", 1)[0]
        recording.abandon()
    random.enter(Stream.WEIGHTS)
    return Drawn(task.model(), {}, why)


def _recorded(task: Task, recording: DeferredInit) -> Drawn:
    with uncollected():  # the recording examines objects created inside of it
        with recording:
            model = task.model()
        return Drawn(model, recording.recipes(model))


def draw(config: Config, task: Task, around: ProcessContext) -> tuple[nn.Module, Mapping[Tensor, InitRecipe]]:
    """Return the initialized model of a run, and the recipes of those weights that have no memory yet.

    Raises:
        BadTask: The model cannot be moved to the device of a rank.
    """
    model, recipes, why_whole = draw_model(task, config.seed, spreads=config.spreads)
    demand_numbers(model, task.name, recipes, spreads=config.spreads)
    lay_out(model, spreads=config.spreads)
    if why_whole:
        around.progress.note(f"Each rank draws the whole model before it is cut: {why_whole}")
    return model, recipes


def build_context(config: Config, task: Task, around: ProcessContext) -> RunContext:
    """Build the context of a run from the task's samples and model."""
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
    """Check that a model can be moved to the device of a rank.

    Args:
        model: The model.
        task: Name of the task, for the message.
        recipes: Weights that are initialized later; they count as weights on the CPU.
        spreads: The model is distributed over ranks.

    Raises:
        BadTask: A weight or buffer is on the meta device, or a distributed model is on several devices.
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
