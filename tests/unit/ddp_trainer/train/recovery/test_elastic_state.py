"""A rank that lacks the state of the run receives it from one that has it."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.process.recorder import NoopRankRecorder
from ddp_trainer.train import Config
from ddp_trainer.train.api import make_progress
from ddp_trainer.train.checkpoint import state_transfer
from ddp_trainer.train.checkpoint.checkpoint_factory import make_saver
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.distributed.stop_signals import StopRequest, exit_immediately
from ddp_trainer.train.loop.goodput_tracker import GoodputTracker
from ddp_trainer.train.loop.run_context import ProcessContext, build_context
from ddp_trainer.train.recovery.elastic_state import ElasticState
from ddp_trainer.train.recovery.peer_recovery import kind_of, transfer_pairs
from ddp_trainer.train.utils.errors import PeerLost
from tests.support.forked_ranks import LOST, run_ranks
from tests.support.train_builders import ALONE, HERE, Lines

STEP = 4


class Wide(Lines):
    def model(self) -> nn.Module:
        return nn.Linear(1, 1000, bias=False)


class Rank:
    """A worker that takes no steps."""

    def __init__(self, generation: int = 1) -> None:
        self.config = Config(global_batch=4, epochs=4)
        stop, env = StopRequest(grace_seconds=1, leave=exit_immediately), replace(HERE, generation=generation)
        process = ProcessContext.outside_groups(env, make_progress(self.config, env), stop, time.time(), None)
        self.context = build_context(self.config, Wide(), process)
        self.held = ElasticState(self.context, GoodputTracker(self.context.timer))

    def resume(self, group: Group) -> None:
        process = replace(self.context.process, group=group)
        self.context.enter(process)
        self.held.resume(make_saver(self.config, HERE, group, NoopRankRecorder(), process.progress))

    @property
    def weight(self) -> torch.Tensor:
        return self.context.model.get_parameter("weight").detach()


def a_rank_of(group: Group) -> Rank:
    """Return the process of a rank; the first one has trained already."""
    rank = Rank()
    if group.rank == 0:
        rank.resume(ALONE)
        rank.weight.fill_(2.0)
        rank.held.state.step = STEP
    return rank


def test_a_restarted_rank_draws_no_weights_if_it_receives_them() -> None:
    def receive(group: Group) -> object:
        rank = a_rank_of(group) if group.rank == 0 else Rank(generation=2)
        was_drawn = rank.context.has_weights
        rank.resume(group)
        return was_drawn, rank.weight.unique().tolist(), rank.held.state.step

    assert run_ranks(2, receive) == [(True, [2.0], STEP), (False, [2.0], STEP)]


def test_restarted_ranks_without_a_state_begin_with_the_first_weights() -> None:
    first, restarted = Rank(), Rank(generation=2)
    assert (first.context.has_weights, restarted.context.has_weights) == (True, False)
    for rank in (first, restarted):
        rank.resume(ALONE)
    assert torch.equal(first.weight, restarted.weight)


def test_a_former_spare_receives_the_state_into_its_own_weights_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_transfer, "_SMALL_BYTES", 1)
    moved = list[int]()

    def remember(move: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        moved.append(tensor.data_ptr())
        return move(tensor, *args, **kwargs)

    for name in ("isend", "irecv"):
        monkeypatch.setattr(dist, name, partial(remember, getattr(dist, name)))

    def receive(group: Group) -> object:
        rank = a_rank_of(group)
        if group.rank == 1:
            rank.held.capture(in_doubt=False)  # a spare holds no model
        rank.resume(group)
        return rank.weight.data_ptr() in moved, rank.weight.unique().tolist()

    assert run_ranks(2, receive) == [(True, [2.0])] * 2


def test_a_rank_whose_source_is_lost_begins_with_the_first_weights_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_transfer, "_SMALL_BYTES", 1)
    monkeypatch.setattr(state_transfer, "_CHUNK_BYTES", 1000)
    send = dist.isend

    def die_within_weights(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        work = send(tensor, *args, **kwargs)
        if tensor.nbytes == 1000:
            work.wait()
            os._exit(9)
        return work

    def receive(group: Group) -> object:
        monkeypatch.setattr(dist, "isend", die_within_weights)
        rank = a_rank_of(group)
        first = rank.weight.clone()
        with pytest.raises(PeerLost):
            rank.resume(group)
        is_torn = not torch.equal(rank.weight, first)
        rank.resume(ALONE)
        return is_torn, torch.equal(rank.weight, first), rank.held.state.step

    assert run_ranks(2, receive) == [LOST, (True, True, 0)]


@pytest.mark.parametrize(
    ("slots", "replica", "expected"),
    [
        ([0, 1, 0, 1], 2, []),
        ([0, 1, 0, 1, -1, -1, -1, -1], 2, [(0, 4), (1, 5), (2, 6), (3, 7)]),
        ([1, 0, 1], 2, [(1, 0), (0, 1), (1, 2)]),
        ([0, -1, 0], 1, [(0, 1)]),
    ],
)
def test_holders_take_turns_to_give(slots: list[int], replica: int, expected: list[tuple[int, int]]) -> None:
    assert transfer_pairs(slots, replica, len(slots)) == expected
    got = {target: slots[source] for source, target in transfer_pairs(slots, replica, len(slots))}
    assert all(got.get(rank, held) == rank % replica for rank, held in enumerate(slots))


def test_a_rank_without_a_place_gives_what_it_holds_and_gets_nothing() -> None:
    assert transfer_pairs([0, 0, 1], 2, places=2) == [(2, 1)]
    assert transfer_pairs([0, 1, 0], 2, places=2) == []


def test_replicas_that_are_cut_alike_hold_the_same_and_others_do_not() -> None:
    kinds = [Layout(shard=2), Layout(replicate=3, shard=2), Layout(tp=2), Layout(pp=2), Layout(shard=4), Layout()]
    numbers = [kind_of(layout) for layout in kinds]
    assert numbers[0] == numbers[1]
    assert len(set(numbers)) == len(kinds) - 1
