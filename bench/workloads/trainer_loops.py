"""The two loops that ``bench overhead`` is about: ours, with everything on, and one written by hand."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from bench.workloads.overhead_workload import (
    RATE,
    SEED,
    Clock,
    Pair,
    Rows,
    Timed,
    Workload,
    mean_loss,
    optimizer_of,
    world_size,
)
from ddp_trainer.common.parallel_dims import LayoutRange
from ddp_trainer.metrics.attach import rank_recorder
from ddp_trainer.train.api import run
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import ScheduleName


def bare(work: Workload, clock: Clock) -> None:
    """Train with a minimal hand-written loop: DDP and a seeded permutation."""
    world, rank = world_size(), int(os.environ.get("RANK", "0"))
    model: nn.Module = Timed(work, clock)
    if world > 1:
        dist.init_process_group("gloo")
        model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    plain_steps(model, work, clock, world=world, rank=rank)
    if world > 1:
        dist.destroy_process_group()


def plain_steps(model: nn.Module, work: Workload, clock: Clock, *, world: int, rank: int) -> None:
    """A loop without anything that is not needed, by a seeded permutation."""
    optimizer = optimizer_of(model)
    inputs, labels = work.samples(work.count)
    own, taken, epoch = work.batch // world, 0, 0
    while taken < clock.steps:
        order = torch.randperm(work.count, generator=torch.Generator().manual_seed(SEED + epoch))[rank::world]
        for ids in torch.split(order, own)[: clock.steps - taken]:
            optimizer.zero_grad()
            mean_loss(model, (inputs[ids], labels[ids])).backward()  # type: ignore[no-untyped-call,unused-ignore] # torch's
            optimizer.step()
            taken += 1
        epoch += 1


class PlainTask:
    """The workload as a task of our trainer, whose optimizer is the one of the flags."""

    name = "bench/overhead"

    def __init__(self, work: Workload, clock: Clock) -> None:
        self._work, self._clock = work, clock

    def model(self) -> nn.Module:
        """The same weights as everywhere."""
        return Timed(self._work, self._clock)

    def train_samples(self) -> Rows:
        """The same samples as everywhere."""
        return Rows(self._work.samples(self._work.count))

    def test_samples(self) -> Rows:
        """None."""
        return Rows((torch.zeros(0, 1), torch.zeros(0, dtype=torch.int64)))

    def losses(self, model: nn.Module, pair: Pair) -> Tensor:
        """Return the loss of each sample, as the mean over its predictions."""
        inputs, labels = pair
        losses = nn.functional.cross_entropy(model(inputs), labels.flatten(), reduction="none")
        return losses if labels.dim() == 1 else losses.view(len(labels), -1).mean(1)

    def metrics(self, model: nn.Module, pair: Pair) -> Mapping[str, Tensor]:
        """Return the loss; the trainer never evaluates here."""
        return {"loss": self.losses(model, pair).sum()}


class SameOptimizerTask(PlainTask):
    """Task that creates the same optimizer object as the hand-written loop."""

    def optimizer(self, parameters: list[nn.Parameter]) -> Optimizer:
        """The same as everywhere."""
        return optimizer_of(nn.ParameterList(parameters))


def ours(work: Workload, clock: Clock) -> None:
    """Train with the optimizer of the flags: AdamW with the same parameters, and the kernel that the flags choose."""
    run_trainer(PlainTask(work, clock), work, clock)


def ours_same_optimizer(work: Workload, clock: Clock) -> None:
    """Train with the optimizer of the hand-written loop, including its kernel."""
    run_trainer(SameOptimizerTask(work, clock), work, clock)


def run_trainer(task: PlainTask, work: Workload, clock: Clock, *, parallel: LayoutRange | None = None) -> None:
    """Train like ``ddp_trainer train``: metrics, sample tracker, vote, phases, guards, stop requests, checkpoints.

    There are as many batch slices as ranks, as in a job of fixed size.
    """
    with tempfile.TemporaryDirectory() as directory:
        config = Config(
            max_steps=clock.steps,
            epochs=1 + clock.steps * work.batch // work.count,
            evaluate_every=1 << 30,
            global_batch=work.batch,
            batch_slices=world_size(),
            seed=SEED,
            learning_rate=RATE,
            schedule=ScheduleName.CONSTANT,
            warmup_steps=0,
            checkpoint_dir=Path(directory),
            parallel=parallel,
        )
        run(config, task, rank_recorder())
