"""Order of samples in blocks: every sample once, whole blocks per batch slice, and the same from any step on."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_trainer.train.data.batch_plan import BatchPlan, cut
from ddp_trainer.train.data.sample_order import block_order, uniform_blocks


def plan_of(counts: list[int], size: int, global_batch: int, batch_slices: int) -> BatchPlan:
    blocks = uniform_blocks(torch.tensor(counts), size)
    return BatchPlan(
        samples=sum(counts), global_batch=global_batch, batch_slices=batch_slices, seed=3, epochs=2, blocks=blocks
    )


def ids_of(runs: Iterable[tuple[int, int]]) -> list[int]:
    return [number for first, count in runs for number in range(first, first + count)]


@settings(max_examples=30)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(1, 8), st.integers(1, 12), st.data())
def test_each_epoch_uses_every_sample_once(counts: list[int], size: int, batch: int, data: st.DataObject) -> None:
    counts[0] += 1
    plan = plan_of(counts, size, batch, data.draw(st.integers(1, batch)))

    for epoch in range(2):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        ids = torch.cat([plan.batch(step) for step in steps])
        assert sorted(ids.tolist()) == list(range(plan.samples))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 20), min_size=1, max_size=5), st.integers(1, 8), st.integers(1, 12), st.data())
def test_a_lane_is_what_its_slice_computes_from_a_step_on(
    counts: list[int], size: int, batch: int, data: st.DataObject
) -> None:
    counts[0] += 1
    plan = plan_of(counts, size, batch, data.draw(st.integers(1, batch)))
    first = data.draw(st.integers(0, plan.total_steps - 1))
    epoch_end = (plan.epoch_of(first) + 1) * plan.steps_per_epoch

    for number in range(plan.batch_slices):
        steps = [plan.batch(step) for step in range(first, epoch_end)]
        expected = torch.cat([ids[cut(len(ids), plan.batch_slices, number)] for ids in steps])
        assert ids_of(plan.lane(first, number)) == expected.tolist()


def test_no_block_lies_in_two_shards() -> None:
    blocks = uniform_blocks(torch.tensor([5, 0, 3, 4]), 3)

    assert blocks.starts.tolist() == [0, 3, 5, 8, 11]
    assert blocks.samples == 12


def test_a_slice_reads_runs_as_long_as_a_block() -> None:
    plan = plan_of([1000, 1000], 100, 40, 4)
    runs = [run for number in range(4) for run in plan.lane(0, number)]

    assert len(runs) <= 20 + 3, "each border between lanes divides one block at most"


@pytest.mark.parametrize("other", [(4, 0), (3, 1)], ids=["seed", "epoch"])
def test_another_seed_or_epoch_has_another_order_of_blocks(other: tuple[int, int]) -> None:
    blocks = uniform_blocks(torch.tensor([100]), 10)
    order = block_order(blocks, 3, 0).starts.tolist()

    assert sorted(order) == blocks.starts.tolist()
    assert order != block_order(blocks, *other).starts.tolist()
