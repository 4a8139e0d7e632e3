"""The parts of a run that stand before any checkpoint is read: samples, weights, and what tells the run from others."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ddp_trainer.layout import Layout
from ddp_trainer.train.batches import data_digest, is_stream
from ddp_trainer.train.config import Config
from ddp_trainer.train.errors import BadTask
from ddp_trainer.train.feeds import Skips, known_count
from ddp_trainer.train.feeds.feed import Stateful
from ddp_trainer.train.guards import Guard
from ddp_trainer.train.manifest import Identity, signature
from ddp_trainer.train.mixing import ALGORITHM
from ddp_trainer.train.options import BackendName, Level, StrategyName
from ddp_trainer.train.phases import Phases
from ddp_trainer.train.randomness import KeyedRandom, Stream
from ddp_trainer.train.surroundings import Surroundings
from ddp_trainer.train.task import Samples, Task
from ddp_trainer.train.watch import Watch


@dataclass(frozen=True, slots=True, kw_only=True)
class Groundwork:
    """What does not depend on how a batch is cut."""

    config: Config
    task: Task
    around: Surroundings
    samples: Samples | Iterable[Any]
    model: nn.Module
    """Drawn from the seed, on the CPU."""
    identity: Identity
    phases: Phases
    watch: Watch
    guard: Guard
    skips: Skips

    @property
    def can_stay(self) -> bool:
        """Whether this process could go on in another worker group with what it holds.

        Not where ranks hold states of their own between synchronisations, where layers are bound to a group, where
        samples come in an order that cannot be gone back in, or with MPI, which begins once in a process: its successor
        then starts from a checkpoint.
        """
        config = self.config
        has_one_state = config.strategy is not StrategyName.LOCAL_SGD or config.level is Level.EXACT
        reads_anywhere = not is_stream(self.samples) and not isinstance(self.samples, Stateful)
        largest = Layout() if config.parallel is None else config.parallel.largest
        is_bound = config.sync_batchnorm or largest.tp * largest.pp > 1 or config.backend is BackendName.MPI
        return has_one_state and reads_anywhere and not is_bound


def draw_model(task: Task, seed: int) -> nn.Module:
    """The task's model with the weights that the seed gives it, on the CPU."""
    KeyedRandom(seed, torch.device("cpu")).enter(Stream.WEIGHTS)
    return task.model()


def lay_groundwork(config: Config, task: Task, around: Surroundings) -> Groundwork:
    """Ask the task for its samples and its model."""
    samples = task.train_samples()
    model = draw_model(task, config.seed)
    demand_numbers(model, task.name, spreads=config.spreads)
    return Groundwork(
        config=config,
        task=task,
        around=around,
        samples=samples,
        model=model,
        identity=Identity(
            task=task.name,
            model=signature(model),
            data=data_digest(task, samples),
            samples=known_count(samples),
            seed=config.seed,
            global_batch=config.global_batch,
            order=ALGORITHM,
        ),
        phases=Phases(time.monotonic, around.recorder.marks),
        watch=Watch(config),
        guard=Guard(config, around.progress.note),
        skips=Skips(around.progress.alarm),
    )


def demand_numbers(model: nn.Module, task: str, *, spreads: bool) -> None:
    """Refuse a model that cannot be brought to the device of a rank; one that ``spreads``, in pieces.

    Raises:
        BadTask: weights are on the meta device, or on several.
    """
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    empty = next((name for name, tensor in tensors.items() if tensor.is_meta), None)
    if empty is not None:
        raise BadTask(
            f"The model of the task {task!r} has no numbers in {empty}, which is on torch's meta device.",
            hint="Let model() build it on the CPU.",
        )
    devices = sorted({str(tensor.device) for tensor in tensors.values()})
    if spreads and len(devices) > 1:
        raise BadTask(
            f"The model of the task {task!r} is on {' and '.join(devices)}, and each of its ranks has one device.",
            hint="Let model() build it on the CPU.",
        )
