"""Exchanges of two ranks, which are two threads here: what they come to, and that nobody is held up in one for good."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo, distributed_c10d

from ddp_trainer.train.abortable_gloo import AbortableGloo

LONG = timedelta(minutes=10)
"""The group's timeout: a test that waits for it has failed."""


@dataclass
class Pair:
    """Two ranks that know each other."""

    over: threading.Event = field(default_factory=threading.Event)
    ranks: list[AbortableGloo] = field(default_factory=list)

    def meet(self, pool: ThreadPoolExecutor) -> None:
        store = dist.HashStore()  # type: ignore[attr-defined] # documented, but not in __all__
        gloo = pool.map(lambda rank: ProcessGroupGloo(store, rank, 2, timeout=LONG), range(2))
        self.ranks = [AbortableGloo(each, self.over.is_set) for each in gloo]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def pair(pool: ThreadPoolExecutor) -> Iterator[Pair]:
    made = Pair()
    made.meet(pool)
    yield made
    made.over.set()
    for rank in made.ranks:
        rank.let_go()


def test_each_rank_has_the_sum_of_both(pair: Pair) -> None:
    own = [torch.tensor([1.0, 2.0]), torch.tensor([10.0, 20.0])]
    works = [rank.allreduce([tensor]) for rank, tensor in zip(pair.ranks, own, strict=True)]
    assert [work.wait() for work in works] == [True, True]
    assert [each.tolist() for each in own] == [[11.0, 22.0]] * 2


def test_each_rank_is_asked_for_the_largest_where_that_is_wanted(pair: Pair) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(dist.ReduceOp.MAX)
    own = [torch.tensor([1.0, 20.0]), torch.tensor([10.0, 2.0])]
    for work in [rank.allreduce([tensor], options) for rank, tensor in zip(pair.ranks, own, strict=True)]:
        work.wait()
    assert [each.tolist() for each in own] == [[10.0, 20.0]] * 2


@pytest.mark.parametrize("shape", [(3,), (2, 2), ()], ids=str)
def test_each_rank_has_what_both_had_one_after_the_other(pair: Pair, shape: tuple[int, ...]) -> None:
    own = [torch.full(shape, 1.0 + number) for number in range(2)]
    gathered = [torch.zeros(2 * shape[0] if shape else 2, *shape[1:]) for _ in own]
    options = distributed_c10d.AllgatherOptions()  # type: ignore[attr-defined] # as above
    works = [
        rank.allgather_into_tensor_coalesced([output], [tensor], options)
        for rank, output, tensor in zip(pair.ranks, gathered, own, strict=True)
    ]
    for work in works:
        work.wait()
    assert [torch.equal(each.view(2, *shape), torch.stack(own)) for each in gathered] == [True, True]


def test_each_rank_has_its_own_part_of_the_sum_and_what_it_gave_is_as_it_was(pair: Pair) -> None:
    given = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[10.0, 20.0], [30.0, 40.0]])]
    parts = [torch.zeros(1, 2), torch.zeros(1, 2)]
    options = dist.ReduceScatterOptions()
    works = [
        rank.reduce_scatter_tensor_coalesced([part], [tensor], options)
        for rank, part, tensor in zip(pair.ranks, parts, given, strict=True)
    ]
    for work in works:
        work.wait()
    assert [part.tolist() for part in parts] == [[[11.0, 22.0]], [[33.0, 44.0]]]
    assert given[0].tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_what_nobody_answers_is_given_up_when_the_group_is_over(pair: Pair, pool: ThreadPoolExecutor) -> None:
    """No connection has broken, and gloo itself would wait for its timeout."""
    alone = pair.ranks[0].allreduce([torch.ones(2)])
    waiting = pool.submit(alone.wait)
    pair.over.set()
    with pytest.raises(RuntimeError, match="gloo has not noticed"):
        waiting.result(LONG.total_seconds() / 10)


def test_a_group_whose_exchange_is_stuck_goes_without_waiting_for_it(pair: Pair) -> None:
    """gloo's own would, in whichever thread lets go of it last."""
    stuck = pair.ranks[0].allreduce([torch.ones(2)])
    pair.over.set()
    pair.ranks.pop(0).let_go()
    outlasting = [thread for thread in threading.enumerate() if thread.name == "ddp-gloo"]
    assert len(outlasting) == 1
    assert outlasting[0].is_alive()
    assert outlasting[0].daemon, "and it does not keep the process"
    with pytest.raises(RuntimeError, match="gloo has not noticed"):
        stuck.wait()


def test_a_peer_that_is_gone_is_told_as_gloo_tells_it(pair: Pair) -> None:
    work = pair.ranks[0].allreduce([torch.ones(2)])
    pair.ranks.pop(1)
    with pytest.raises(RuntimeError, match=r"onnection (closed|reset) by peer"):
        work.wait()


def test_what_is_not_written_anew_gloo_does(pair: Pair) -> None:
    """As that by which the first weights are given out."""
    own = [torch.ones(2), torch.zeros(2)]
    works = [rank.broadcast([tensor], dist.BroadcastOptions()) for rank, tensor in zip(pair.ranks, own, strict=True)]
    for work in works:
        work.wait()
    assert own[1].tolist() == [1.0, 1.0]
    assert pair.ranks[0].name() == "ddp_gloo"
