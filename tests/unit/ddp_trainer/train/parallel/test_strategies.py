"""Strategies on one rank: what they send, and when local SGD averages."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.parallel.factory import build
from ddp_trainer.train.parallel.strategy import Parts, Strategy
from tests.support.train_builders import ALONE

CPU = torch.device("cpu")


class Sums(nn.Module):
    """A loss that is linear in its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 1)

    def forward(self, batch: Tensor) -> Tensor:
        out: Tensor = self.layer(batch)
        return out


def a_strategy(name: str, group: Group, model: nn.Module, **options: object) -> Strategy:
    plan = BatchPlan(samples=20, global_batch=4, batch_slices=4, seed=0, epochs=2)
    config = Config(strategy=name, **options)  # type: ignore[arg-type] # by name
    return build(Parts(model=model, losses=lambda m, b: m(b).squeeze(1), group=group, plan=plan, config=config))


def test_gradients_travel_once_per_step_however_many_passes_it_has() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        strategy = a_strategy("ddp", Group(0, 2, "gloo", CPU), Sums())
        sent: list[int] = []

        def hook(_, bucket):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - DDP refuses postponed annotations
            sent.append(bucket.buffer().numel())
            done: torch.futures.Future[Tensor] = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        strategy._ddp.register_comm_hook(None, hook)  # type: ignore[attr-defined] # DDP's
        for step in range(3):
            strategy.begin(step)
            for _ in range(4):
                with strategy.no_sync():
                    strategy.backward(strategy.forward(torch.ones(2, 2)), 10)
            assert len(sent) == step
            strategy.backward(strategy.forward(torch.ones(2, 2)), 10)
            assert len(sent) == step + 1
            strategy.reduce(10)
            assert len(sent) == step + 1
    finally:
        dist.destroy_process_group()


def test_local_sgd_is_one_model_after_every_so_many_steps_an_epoch_and_the_run() -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        strategy = a_strategy("local-sgd", Group(0, 2, "gloo", CPU), Sums(), sync_steps=3)
        assert [steps for steps in range(1, 11) if strategy.is_synchronized_after(steps)] == [3, 5, 6, 9, 10]
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("name", ["ddp", "manual", "local-sgd"])
def test_one_rank_needs_no_peers(name: str) -> None:
    assert type(a_strategy(name, ALONE, Sums())) is Strategy
