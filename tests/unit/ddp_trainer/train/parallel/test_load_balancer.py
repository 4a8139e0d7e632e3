"""Dynamic balance: the map that all ranks draw from the same numbers."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from ddp_trainer.common.time_classes import Phase
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.step_timer import StepTimer
from ddp_trainer.train.parallel.load_balancer import WINDOW_STEPS, LoadBalancer, balance_slices, max_rank_time

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
    cpu = torch.device("cpu")
    made = [
        LoadBalancer(
            batch_slices,
            Group(rank, world, "gloo", cpu),
            StepTimer(lambda: 0.0),
            lambda counts: reports.append(list(counts)),
        )
        for rank in range(world)
    ]
    return made, reports


def settled(balances: list[LoadBalancer], busy: list[float], steps: int = WINDOW_STEPS) -> list[list[range] | None]:
    for _ in range(steps):
        batch_slices = [balance.rebalance(busy) for balance in balances]
    return batch_slices


def test_a_slow_rank_gets_fewer_slices_and_all_ranks_agree() -> None:
    balances, reports = ranks(3, 8)
    assert settled(balances, [1.0, 4.0, 1.0]) == [[range(4), range(4, 5), range(5, 8)]] * 3
    assert reports == [[4, 1, 3]] * 3


def test_a_small_difference_changes_nothing() -> None:
    balances, reports = ranks(2, 8)
    assert settled(balances, [1.0, 1.05]) == [None, None]
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


def test_a_rank_without_samples_for_a_while_is_not_judged() -> None:
    balances, _ = ranks(2, 8)
    assert settled(balances, [1.0, 0.0]) == [None, None]


def test_a_ballot_holds_the_seconds_per_sample_of_data_and_forward_in_the_ranks_own_place() -> None:
    now = [0.0]
    phases = StepTimer(lambda: now[0])
    for phase, seconds in ((Phase.DATA_WAIT, 2.0), (Phase.FORWARD, 4.0), (Phase.BACKWARD, 100.0)):
        now[0] += seconds
        phases.end_phase(phase)
    balance = LoadBalancer(8, Group(1, 3, "gloo", torch.device("cpu")), phases, lambda _: None)
    assert balance.cost_vector(3) == [0.0, 2.0, 0.0]
    assert balance.cost_vector(0) == [0.0, 0.0, 0.0]
