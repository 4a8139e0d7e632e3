"""The samples of a step, their order, and the rank of each batch slice."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_trainer.train.data.batch_plan import BatchPlan, choose_batch_slices, cut, digest, owned
from ddp_trainer.train.data.batch_reader import micro_batches, reader, to_device
from ddp_trainer.train.data.keyed_rng import mix, mix_all
from ddp_trainer.train.data.sample_order import COMPUTED, block_order, order, permute, uniform_blocks
from ddp_trainer.train.utils.errors import BadConfig, BadTask
from tests.support.train_builders import slice_ids


def a_plan(**changes: Any) -> BatchPlan:
    values: dict[str, Any] = {"samples": 10, "global_batch": 4, "batch_slices": 4, "seed": 0, "epochs": 2}
    return BatchPlan(**{**values, **changes})


def test_splitmix_gives_the_published_values() -> None:
    # First outputs of the reference implementation for the seed 1234567.
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert [mix((1234567 + step * 0x9E3779B97F4A7C15) % 2**64) for step in range(3)] == published


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**62), min_size=1, max_size=20))
def test_tensors_and_numbers_are_mixed_alike(key: int, numbers: list[int]) -> None:
    mixed = mix_all(torch.tensor(numbers), key)
    assert [number % 2**64 for number in mixed.tolist()] == [mix(key + number) for number in numbers]


def test_the_order_never_changes_between_versions() -> None:
    assert order(10, 0, 0).tolist() == [8, 6, 7, 2, 0, 1, 3, 4, 5, 9]
    assert order(10, 0, 1).tolist() == [0, 9, 6, 8, 2, 7, 5, 3, 4, 1]
    assert order(10, 1, 0).tolist() == [2, 8, 1, 7, 9, 6, 3, 5, 0, 4]
    assert permute(torch.arange(6), 2_000_003, 7).tolist() == [1627371, 755836, 1469236, 818707, 769691, 878255]


@given(st.integers(1, 300), st.integers(0, 2**63 - 1))
def test_the_computed_order_is_a_permutation(samples: int, key: int) -> None:
    assert sorted(permute(torch.arange(samples), samples, key).tolist()) == list(range(samples))


def test_a_batch_of_a_large_data_set_is_computed_without_the_rest() -> None:
    plan = a_plan(samples=10**12, global_batch=1000, order=COMPUTED)
    assert plan.batches(range(5, 7)).flatten().tolist() == [*plan.batch(5).tolist(), *plan.batch(6).tolist()]
    assert len({*plan.batch(5).tolist(), *plan.batch(6).tolist()}) == 2000
    assert plan.batch(5).tolist() != plan.batch(5 + plan.steps_per_epoch).tolist()


@given(st.integers(1, 300), st.integers(0, 2**63 - 1), st.integers(0, 50))
def test_the_order_is_a_permutation(samples: int, seed: int, epoch: int) -> None:
    assert sorted(order(samples, seed, epoch).tolist()) == list(range(samples))


def test_the_last_step_of_an_epoch_has_what_is_left() -> None:
    plan = a_plan()
    assert plan.steps_per_epoch == 3
    assert [len(plan.batch(step)) for step in range(6)] == [4, 4, 2, 4, 4, 2]
    assert [plan.is_epoch_end(step) for step in range(6)] == [False, False, True, False, False, True]


def test_a_run_ends_after_its_epochs_or_its_steps() -> None:
    assert a_plan().total_steps == 6
    assert a_plan(max_steps=4).total_steps == 4
    assert a_plan(max_steps=40).total_steps == 6


def demand_even(pieces: list[range], length: int) -> None:
    assert [number for piece in pieces for number in piece] == list(range(length))
    sizes = [len(piece) for piece in pieces]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 200), st.integers(1, 40))
def test_cuts_are_contiguous_and_differ_by_at_most_one(length: int, parts: int) -> None:
    demand_even([range(length)[cut(length, parts, part)] for part in range(parts)], length)


@given(st.integers(1, 64), st.data())
def test_every_slice_has_one_owner_and_every_rank_a_slice(batch_slices: int, data: st.DataObject) -> None:
    world = data.draw(st.integers(1, batch_slices))
    owners = [owned(batch_slices, world, rank) for rank in range(world)]
    demand_even(owners, batch_slices)
    assert all(owners)


def test_a_world_larger_than_the_slices_is_refused_with_the_way_out() -> None:
    with pytest.raises(BadConfig, match=r"9 ranks.*8 batch slices.*--batch-slices 16"):
        owned(8, 9, 0)


@pytest.mark.parametrize(
    ("requested", "promised", "most", "world", "batch", "batch_slices"),
    [
        (None, None, None, 1, 64, 8),
        (None, None, None, 12, 64, 16),
        (None, None, 2, 2, 64, 8),
        (None, None, 16, 8, 64, 16),
        (None, 4, 4, 2, 64, 4),
        (None, 6, None, 2, 64, 8),
        (None, 8, 16, 8, 64, 16),
        (None, 16, 16, 2, 5, 5),
        (3, 16, 16, 2, 64, 3),
    ],
)
def test_slices_are_a_power_of_two_that_holds_the_largest_world(
    requested: int | None, promised: int | None, most: int | None, world: int, batch: int, batch_slices: int
) -> None:
    ranks = {"promised_ranks": promised, "max_ranks": most, "world_size": world}
    assert choose_batch_slices(requested, **ranks, global_batch=batch) == batch_slices


def test_a_batch_smaller_than_the_world_is_refused_with_the_way_out() -> None:
    with pytest.raises(BadConfig, match=r"batch of 3 cannot feed 5 ranks.*--global-batch 8"):
        choose_batch_slices(None, promised_ranks=None, max_ranks=None, world_size=5, global_batch=3)


@given(st.sets(st.integers(0, 10_000), min_size=2, max_size=30), st.integers(1, 5))
def test_the_digest_adds_up_over_ranks_and_tells_sets_with_equal_sums_apart(ids: set[int], shift: int) -> None:
    all_ids = torch.tensor(sorted(ids))
    half = len(all_ids) // 2
    assert digest(all_ids) == digest(all_ids[:half]) + digest(all_ids[half:])
    moved = all_ids.clone()
    moved[0] -= shift
    moved[-1] += shift
    assert digest(moved) != digest(all_ids)


def plan_of(counts: list[int], size: int, global_batch: int, batch_slices: int) -> BatchPlan:
    blocks = uniform_blocks(torch.tensor(counts), size)
    return a_plan(samples=sum(counts), global_batch=global_batch, batch_slices=batch_slices, seed=3, blocks=blocks)


@st.composite
def plans_of_blocks(draw: st.DrawFn) -> BatchPlan:
    first, *others = draw(st.lists(st.integers(0, 20), min_size=1, max_size=5))
    batch = draw(st.integers(1, 12))
    return plan_of([first + 1, *others], draw(st.integers(1, 8)), batch, draw(st.integers(1, batch)))


@settings(max_examples=30)
@given(plans_of_blocks())
def test_each_epoch_uses_every_sample_once(plan: BatchPlan) -> None:
    for epoch in range(2):
        steps = range(epoch * plan.steps_per_epoch, (epoch + 1) * plan.steps_per_epoch)
        assert sorted(torch.cat([plan.batch(step) for step in steps]).tolist()) == list(range(plan.samples))


@settings(max_examples=30)
@given(plans_of_blocks(), st.data())
def test_a_lane_has_what_its_slice_computes_later(plan: BatchPlan, data: st.DataObject) -> None:
    first = data.draw(st.integers(0, plan.total_steps - 1))
    epoch_end = (plan.epoch_of(first) + 1) * plan.steps_per_epoch
    for number in range(plan.batch_slices):
        expected = torch.cat([slice_ids(plan, step, number) for step in range(first, epoch_end)])
        ids = [sample for start, count in plan.slice_runs(first, number) for sample in range(start, start + count)]
        assert ids == expected.tolist()


def test_no_block_lies_in_two_shards() -> None:
    blocks = uniform_blocks(torch.tensor([5, 0, 3, 4]), 3)

    assert blocks.starts.tolist() == [0, 3, 5, 8, 11]
    assert blocks.samples == 12


def test_a_slice_reads_runs_as_long_as_a_block() -> None:
    plan = plan_of([1000, 1000], 100, 40, 4)
    runs = [run for number in range(4) for run in plan.slice_runs(0, number)]

    assert len(runs) <= 20 + 3, "each border between lanes divides one block at most"


@pytest.mark.parametrize("other", [(4, 0), (3, 1)], ids=["seed", "epoch"])
def test_another_seed_or_epoch_has_another_order_of_blocks(other: tuple[int, int]) -> None:
    blocks = uniform_blocks(torch.tensor([100]), 10)
    order = block_order(blocks, 3, 0).starts.tolist()

    assert sorted(order) == blocks.starts.tolist()
    assert order != block_order(blocks, *other).starts.tolist()


Pair = namedtuple("Pair", "x y")  # noqa: PYI024 - what users hand over need not be typed


def test_micro_batches_are_pieces_of_the_batch_in_order() -> None:
    batch = {"a": torch.arange(5), "b": [torch.arange(5), ("p", "q", "r", "s", "t")]}
    batch["c"] = Pair(torch.ones(5, 2), torch.arange(5))
    pieces = list(micro_batches(batch, 5, 2))
    assert [piece["a"].tolist() for piece in pieces] == [[0, 1], [2, 3], [4]]
    assert [piece["b"][1] for piece in pieces] == [("p", "q"), ("r", "s"), ("t",)]
    assert [piece["c"].x.shape[0] for piece in pieces] == [2, 2, 1]
    assert list(micro_batches(batch, 5, 5)) == [batch]


@pytest.mark.parametrize("batch", [torch.ones(3), (torch.ones(5), 7), {"a": torch.ones(4)}])
def test_a_batch_that_cannot_be_cut_is_refused(batch: object) -> None:
    with pytest.raises(BadTask, match="--micro-batch cuts a batch of 5 samples"):
        list(micro_batches(batch, 5, 2))


def test_every_kind_of_batch_reaches_the_device() -> None:
    moved = to_device({"a": (torch.ones(1), [torch.ones(1)]), "b": Pair(torch.ones(1), "text")}, torch.device("meta"))
    assert moved["a"][0].device.type == moved["a"][1][0].device.type == moved["b"].x.device.type == "meta"
    assert moved["b"].y == "text"


def test_the_fastest_way_to_fetch_is_taken() -> None:
    class Single:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> int:
            return index * 10

    class Many(Single):
        def __getitems__(self, ids: list[int]) -> list[int]:
            return [index * 100 for index in ids]

    ids = torch.tensor([3, 1])
    assert reader(Single())(ids).tolist() == [30, 10]
    assert reader(Many())(ids).tolist() == [300, 100]
