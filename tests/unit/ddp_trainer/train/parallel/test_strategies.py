"""Strategies, and how each divides work and state among ranks."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from ddp_trainer.common.time_classes import Phase
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.parallel import strategy
from ddp_trainer.train.parallel.factory import build
from ddp_trainer.train.parallel.load_balancer import WINDOW_STEPS, LoadBalancer, balance_slices, max_rank_time
from ddp_trainer.train.parallel.strategy import ScaledBackward, Strategy, StrategyArguments, buffer_argument
from ddp_trainer.train.transforms.blocks import named_blocks
from ddp_trainer.train.utils.errors import BadConfig
from tests.support.forked_ranks import run_ranks
from tests.support.train_builders import ALONE

CPU = torch.device("cpu")


def a_strategy(name: str, group: Group, model: nn.Module) -> Strategy:
    plan = BatchPlan(samples=20, global_batch=4, batch_slices=4, seed=0, epochs=2)
    config = Config(strategy=name)  # type: ignore[arg-type] # by name
    return build(
        StrategyArguments(model=model, losses=lambda m, b: m(b).squeeze(1), group=group, plan=plan, config=config)
    )


@pytest.mark.parametrize("name", ["ddp", "manual", "local-sgd"])
def test_one_rank_needs_no_peers(name: str) -> None:
    assert type(a_strategy(name, ALONE, nn.Linear(2, 1))) is Strategy


def gradient_of(run: ScaledBackward, dtype: torch.dtype = torch.float32) -> Tensor:
    weight = torch.tensor([1.0, 2.0, 4.0], dtype=dtype, requires_grad=True)
    run((weight * weight)[:2], 8)
    run((weight * weight)[2:], 8)
    assert weight.grad is not None
    return weight.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("ranks", [1, 4])
def test_a_backward_pass_gives_the_gradient_of_the_mean_over_the_whole_step(ranks: int, dtype: torch.dtype) -> None:
    assert gradient_of(ScaledBackward(ranks), dtype).tolist() == [ranks / 4, ranks / 2, ranks * 1.0]


def test_the_engine_is_used_as_torch_has_it() -> None:
    # If a new version of torch changes its engine, passes only become slower.
    assert strategy._engine() is not None


def test_without_the_engine_the_gradient_is_the_same() -> None:
    run = ScaledBackward(4)
    run._run = None
    assert torch.equal(gradient_of(run), gradient_of(ScaledBackward(4)))


def test_blocks_are_found_by_the_names_of_their_classes_in_order_and_what_lies_in_them_first() -> None:
    inner = nn.Sequential(nn.Linear(2, 2))
    model = nn.Sequential(inner, nn.Linear(2, 3), inner)
    assert named_blocks(model, ["Sequential", "Linear"]) == [inner[0], inner, model[1]]
    with pytest.raises(BadConfig, match=r"'ReLU', and Sequential has no such module .* It has Linear, Sequential\."):
        named_blocks(model, ["ReLU"])


costs = st.floats(1e-6, 1e3)


@given(st.lists(costs, min_size=1, max_size=6), st.integers(0, 12))
def test_every_slice_has_an_owner_and_every_rank_a_slice(seconds: list[float], more: int) -> None:
    counts = balance_slices(len(seconds) + more, seconds)
    assert sum(counts) == len(seconds) + more
    assert min(counts) >= 1


@given(st.lists(costs, min_size=2, max_size=2), st.integers(2, 20))
def test_no_other_map_has_an_earlier_slowest_rank(seconds: list[float], batch_slices: int) -> None:
    best = min(max_rank_time([count, batch_slices - count], seconds) for count in range(1, batch_slices))
    assert max_rank_time(balance_slices(batch_slices, seconds), seconds) == best


def ranks(world: int, batch_slices: int) -> tuple[list[LoadBalancer], list[list[int]]]:
    reports: list[list[int]] = []
    groups, timer = [Group(rank, world, "gloo", CPU) for rank in range(world)], StepTimer(lambda: 0.0)
    made = [LoadBalancer(batch_slices, group, timer, lambda counts: reports.append([*counts])) for group in groups]
    return made, reports


def settled(balances: list[LoadBalancer], busy: list[float], steps: int = WINDOW_STEPS) -> list[list[range] | None]:
    for _ in range(steps):
        batch_slices = [balance.rebalance(busy) for balance in balances]
    return batch_slices


def test_a_slow_rank_gets_fewer_slices_and_all_ranks_agree() -> None:
    balances, reports = ranks(3, 8)
    assert settled(balances, [1.0, 4.0, 1.0]) == [[range(4), range(4, 5), range(5, 8)]] * 3
    assert reports == [[4, 1, 3]] * 3


@pytest.mark.parametrize("busy", [[1.0, 1.05], [1.0, 0.0]], ids=["a small difference", "a rank without samples"])
def test_ranks_that_are_not_known_to_be_slow_keep_their_slices(busy: list[float]) -> None:
    balances, reports = ranks(2, 8)
    assert settled(balances, busy) == [None, None]
    assert reports == []


def test_one_slow_step_is_not_a_slow_rank() -> None:
    balances, _ = ranks(2, 8)
    settled(balances, [1.0, 50.0], steps=1)
    assert settled(balances, [1.0, 1.0], steps=WINDOW_STEPS - 1) == [None, None]


def test_a_rank_that_recovers_gets_its_slices_back() -> None:
    balances, reports = ranks(2, 8)
    settled(balances, [1.0, 3.0])
    assert settled(balances, [1.0, 1.0]) == [[range(4), range(4, 8)]] * 2
    assert reports == [[6, 2]] * 2 + [[4, 4]] * 2


def test_a_ballot_holds_the_seconds_per_sample_of_data_and_forward_in_the_ranks_own_place() -> None:
    now = [0.0]
    phases = StepTimer(lambda: now[0])
    for phase, seconds in ((Phase.DATA_WAIT, 2.0), (Phase.FORWARD, 4.0), (Phase.BACKWARD, 100.0)):
        now[0] += seconds
        phases.end_phase(phase)
    balance = LoadBalancer(8, Group(1, 3, "gloo", CPU), phases, lambda _: None)
    assert balance.cost_vector(3) == [0.0, 2.0, 0.0]
    assert balance.cost_vector(0) == [0.0, 0.0, 0.0]


@pytest.mark.filterwarnings("ignore")  # torch 2.13 warns of its older argument
@pytest.mark.parametrize("name", ["forward_sync_buffers", "broadcast_buffers"])
@pytest.mark.parametrize(("has_agreed", "means"), [(False, [[1.0, 1.0]] * 2), (True, [[1.0, 1.0], [2.0, 2.0]])])
def test_ranks_get_the_buffers_of_rank_0_unless_they_have_agreed_on_their_state(
    monkeypatch: pytest.MonkeyPatch, name: str, has_agreed: bool, means: list[list[float]]
) -> None:
    monkeypatch.setattr(strategy, "_BUFFER_ARGUMENT", name)

    def wrap(group: Group) -> object:
        model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
        model.get_buffer("1.running_mean").fill_(group.rank + 1.0)
        group.has_agreed_state = has_agreed
        a_strategy("ddp", group, model)
        return model.get_buffer("1.running_mean").tolist()

    assert run_ranks(2, wrap) == means


def of_torch_2_12(self: object, module: object, broadcast_buffers: bool = True) -> None: ...


def of_torch_2_13(self: object, module: object, forward_sync_buffers: bool | None = None) -> None: ...


@pytest.mark.parametrize(
    ("constructor", "name"), [(of_torch_2_12, "broadcast_buffers"), (of_torch_2_13, "forward_sync_buffers")]
)
def test_buffers_are_left_to_the_step_in_the_words_of_each_torch(constructor: Callable[..., None], name: str) -> None:
    assert buffer_argument(constructor) == name
