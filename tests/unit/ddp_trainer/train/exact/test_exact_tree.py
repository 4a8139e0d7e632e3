"""Sums of gradients and of running statistics that do not depend on the world."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TypeVar

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from ddp_trainer.train.data.batch_plan import owned
from ddp_trainer.train.exact.buffer_sync import FirstRanksBuffers, SharedBuffers
from ddp_trainer.train.exact.tree_allreduce import BinaryCounter, TreeNode, TreeSum, buckets, subtree_roots
from tests.support.train_builders import ALONE


@st.composite
def cut_runs(draw: st.DrawFn) -> tuple[int, list[range]]:
    """Draw a number of leaves and contiguous runs of them, one per rank."""
    leaves = draw(st.integers(1, 70))
    inner = draw(st.sets(st.integers(1, leaves - 1))) if leaves > 1 else set()
    return leaves, [range(start, stop) for start, stop in pairwise([0, *sorted(inner), leaves])]


def words(left: str, right: str) -> str:
    """Add with visible parentheses."""
    return f"({left}+{right})"


def by_definition(leaves: int, level: int, place: int) -> str:
    """Return the sum of a node by the definition in the module's docstring."""
    if level == 0:
        return str(place)
    left = by_definition(leaves, level - 1, 2 * place)
    if (2 * place + 1) << (level - 1) >= leaves:
        return left
    return words(left, by_definition(leaves, level - 1, 2 * place + 1))


Value = TypeVar("Value")


def of_ranks(values: Sequence[Value], runs: Sequence[range], add: Callable[[Value, Value], Value]) -> Value:
    """Add the leaves of each rank, then the sums of the ranks."""
    merged = BinaryCounter(len(values), add)
    for run in runs:
        own = BinaryCounter(len(values), add)
        for leaf in run:
            own.put(TreeNode(0, leaf), values[leaf])
        for node, value in zip(own.nodes, own.values, strict=True):
            merged.put(node, value)
    return merged.root()


@given(cut_runs())
def test_the_association_is_the_same_however_the_leaves_are_owned(cut: tuple[int, list[range]]) -> None:
    leaves, runs = cut
    assert of_ranks([*map(str, range(leaves))], runs, words) == by_definition(leaves, (leaves - 1).bit_length(), 0)


@given(cut_runs())
def test_all_ranks_know_which_sums_each_of_them_has(cut: tuple[int, list[range]]) -> None:
    leaves, runs = cut
    for run in runs:
        counter = BinaryCounter[str](leaves, words)
        for leaf in run:
            counter.put(TreeNode(0, leaf), str(leaf))
        assert counter.nodes == subtree_roots(leaves, run)


@given(st.integers(1, 1000))
def test_a_rank_alone_holds_no_more_sums_than_the_tree_has_levels(leaves: int) -> None:
    counter = BinaryCounter[None](leaves, lambda _left, _right: None)
    for leaf in range(leaves):
        counter.put(TreeNode(0, leaf), None)
        assert len(counter.nodes) <= max(1, (leaves - 1).bit_length())
    assert len(counter.nodes) == 1


def test_a_sum_that_lacks_leaves_is_refused() -> None:
    counter = BinaryCounter[str](3, words)
    counter.put(TreeNode(0, 0), "0")
    with pytest.raises(ValueError, match="sum of 3 leaves"):
        counter.root()


@given(st.integers(2, 33), st.integers(0, 2**31))
def test_sums_of_floats_have_the_same_bits_at_every_world(leaves: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    scale = 10.0 ** torch.randint(-6, 7, (leaves, 50), generator=generator)
    values = list(torch.randn(leaves, 50, generator=generator) * scale)
    sums = [
        of_ranks(values, [owned(leaves, world, rank) for rank in range(world)], torch.add).view(torch.int32).tolist()
        for world in range(1, leaves + 1)
    ]
    assert all(bits == sums[0] for bits in sums)


def test_a_slice_that_gives_nothing_gives_zeros() -> None:
    tree = TreeSum(4, ALONE, lambda: [torch.zeros(1)])
    tree.put(1, [torch.tensor([-0.0])])
    tree.put(2, [torch.tensor([-0.0])])
    (total,) = tree.total()
    assert not torch.signbit(total).item()
    tree.put(3, [torch.tensor([5.0])])
    assert tree.total()[0].tolist() == [5.0]


def test_what_an_attempt_left_is_forgotten() -> None:
    tree = TreeSum(2, ALONE, lambda: [torch.zeros(1)])
    tree.put(0, [torch.ones(1)])
    tree.clear()
    tree.put(0, [torch.full((1,), 3.0)])
    assert tree.total()[0].tolist() == [3.0]


def test_tensors_travel_in_buckets_of_one_type_and_bounded_size() -> None:
    tensors = [torch.zeros(10), torch.zeros(1, dtype=torch.float64), torch.zeros(30), torch.zeros(5), torch.zeros(5)]
    assert list(buckets(tensors, limit_bytes=60)) == [[0], [2], [3, 4], [1]]
    assert list(buckets(tensors, limit_bytes=1000)) == [[0, 2, 3, 4], [1]]


@pytest.mark.parametrize("kind", [SharedBuffers, FirstRanksBuffers])
def test_a_skipped_step_leaves_running_statistics_where_they_were(kind: type[SharedBuffers]) -> None:
    model = nn.BatchNorm1d(2)
    buffers = kind(model, ALONE)
    model(torch.tensor([[float("nan"), 1.0], [2.0, 3.0]]))
    buffers.slice_done()
    buffers.discard()
    assert model.running_mean.tolist() == [0.0, 0.0]
    model(torch.tensor([[10.0, 10.0], [10.0, 10.0]]))
    buffers.slice_done()
    buffers.gather()
    buffers.commit()
    assert model.running_mean.tolist() == pytest.approx([1.0, 1.0])


def test_rank_0s_buffers_pass_from_slice_to_slice() -> None:
    model = nn.BatchNorm1d(1)
    buffers = FirstRanksBuffers(model, ALONE)
    for value in (10.0, 20.0):
        model(torch.full((2, 1), value))
        buffers.slice_done()
    buffers.gather()
    buffers.commit()
    assert model.running_mean.item() == pytest.approx(0.9 * 1.0 + 2.0)
    assert model.num_batches_tracked == 2


def test_statistics_go_on_from_loaded_buffers() -> None:
    model = nn.BatchNorm1d(2)
    buffers = SharedBuffers(model, ALONE)
    model.running_mean.fill_(3.0)  # type: ignore[union-attr]
    buffers.restart()
    buffers.gather()
    buffers.commit()
    assert model.running_mean.tolist() == [3.0, 3.0]  # type: ignore[union-attr]
