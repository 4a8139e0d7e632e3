"""Collectives of two ranks, here two threads: their results, and their end when the group is over."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import ProcessGroupGloo, distributed_c10d

from ddp_trainer.common.parallel_dims import DIMENSIONS, MeshDimension
from ddp_trainer.train.distributed.abortable_gloo import AbortableGloo
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh import device_mesh
from tests.support.programs import captured

LONG = timedelta(minutes=10)
"""The group's timeout: a test that waits for it has failed."""


class Pair:
    """Two ranks that know each other."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.over = threading.Event()
        store = dist.HashStore()  # type: ignore[attr-defined] # documented, but not in __all__
        gloo = pool.map(lambda rank: ProcessGroupGloo(store, rank, 2, timeout=LONG), range(2))
        self.ranks = [AbortableGloo(backend, self.over.is_set) for backend in gloo]


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as made:
        yield made


@pytest.fixture
def pair(pool: ThreadPoolExecutor) -> Iterator[Pair]:
    yield (made := Pair(pool))
    made.over.set()
    for rank in made.ranks:
        rank.release_pending_work()


def await_all(works: list[Any]) -> None:
    assert all(work.wait() is not False for work in works)


@pytest.mark.parametrize(("operation", "expected"), [("SUM", [11.0, 22.0]), ("MAX", [10.0, 20.0])])
def test_each_rank_has_the_sum_or_the_maximum_of_both(pair: Pair, operation: str, expected: list[float]) -> None:
    options = dist.AllreduceOptions()
    options.reduceOp = dist.ReduceOp(getattr(dist.ReduceOp, operation))
    own = [torch.tensor([1.0, 20.0]), torch.tensor([10.0, 2.0])]
    await_all([rank.allreduce([tensor], options) for rank, tensor in zip(pair.ranks, own, strict=True)])
    assert [summed.tolist() for summed in own] == [expected] * 2


@pytest.mark.parametrize("shape", [(3,), (2, 2), ()], ids=str)
def test_each_rank_has_what_both_had_one_after_the_other(pair: Pair, shape: tuple[int, ...]) -> None:
    own = [torch.full(shape, 1.0 + number) for number in range(2)]
    gathered = [torch.zeros(2 * shape[0] if shape else 2, *shape[1:]) for _ in own]
    options = distributed_c10d.AllgatherOptions()  # type: ignore[attr-defined] # as above
    ranks = zip(pair.ranks, gathered, own, strict=True)
    await_all([rank.allgather_into_tensor_coalesced([output], [tensor], options) for rank, output, tensor in ranks])
    assert [torch.equal(summed.view(2, *shape), torch.stack(own)) for summed in gathered] == [True, True]


def test_each_rank_has_its_own_part_of_the_sum_and_what_it_gave_is_as_it_was(pair: Pair) -> None:
    given = [torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[10.0, 20.0], [30.0, 40.0]])]
    parts = [torch.zeros(1, 2), torch.zeros(1, 2)]
    options = dist.ReduceScatterOptions()
    ranks = zip(pair.ranks, parts, given, strict=True)
    await_all([rank.reduce_scatter_tensor_coalesced([part], [tensor], options) for rank, part, tensor in ranks])
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
    before = set(threading.enumerate())
    pair.ranks.pop(0).release_pending_work()
    (outlasting,) = set(threading.enumerate()) - before
    assert outlasting.name == "ddp-gloo"
    assert outlasting.daemon, "and it does not keep the process"
    with pytest.raises(RuntimeError, match="gloo has not noticed"):
        stuck.wait()


def test_a_peer_that_is_gone_is_told_as_gloo_tells_it(pair: Pair) -> None:
    work = pair.ranks[0].allreduce([torch.ones(2)])
    pair.ranks.pop(1)
    with pytest.raises(RuntimeError, match=r"onnection (closed|reset) by peer"):
        work.wait()


TALK = """
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import torch
import torch.distributed as dist
from ddp_trainer.train.distributed.abortable_gloo import AbortableGloo

store = dist.HashStore()

def say(rank):
    group = AbortableGloo(dist.ProcessGroupGloo(store, rank, 2, timeout=timedelta(seconds=30)), lambda: False)
    for _ in range(300):
        tensor = torch.full((3,), 1.0 + rank)
        group.broadcast([tensor], dist.BroadcastOptions()).wait()
    group.barrier(opts=dist.BarrierOptions()).wait()
    return tensor[0].item()

with ThreadPoolExecutor(2) as pool:
    print(*pool.map(say, range(2)))
"""


def test_ranks_that_say_a_lot_in_a_row_never_stand_still() -> None:
    """torch's own ways of a group in Python hold the GIL, for which gloo waits where it drops a tensor of Python's."""
    done = captured([sys.executable, "-c", TALK], check=True, timeout=60)
    assert done.stdout.split() == ["1.0", "1.0"]


def test_a_group_counts_what_was_begun_as_the_launcher_asks_every_group(pair: Pair) -> None:
    """The launcher finds hanging ranks by these numbers."""
    ranks: list[Any] = list(pair.ranks)  # the stubs do not know it
    before = [rank._get_sequence_number_for_group() for rank in ranks]
    await_all([rank.allreduce([torch.ones(2)]) for rank in ranks])
    assert [rank._get_sequence_number_for_group() for rank in ranks] == [number + 1 for number in before]


def test_every_way_of_a_group_that_python_may_write_anew_is_written_anew() -> None:
    """torch falls back from a missing newer name to the older one."""
    header = next(Path(torch.__file__).parent.rglob("PyProcessGroup.hpp")).read_text()
    ways = set(re.findall(r"c10::intrusive_ptr<Work> (\w+)\(", header))
    renamed = {
        "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
        "all_to_all_single": "alltoall_base",
        "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
    }
    assert "broadcast" in ways
    known = {"endCoalescing", *vars(AbortableGloo)}  # which gloo has not
    assert {renamed.get(name, name) for name in ways} <= known


def test_what_two_ranks_say_to_each_other_is_left_to_gloo(pair: Pair) -> None:
    received = torch.zeros(2)
    await_all([pair.ranks[0].send([torch.ones(2)], 1, 0), pair.ranks[1].recv([received], 0, 0)])
    assert received.tolist() == [1.0, 1.0]
    assert pair.ranks[0].name() == "ddp_gloo"


@pytest.mark.parametrize("dimension", DIMENSIONS, ids=lambda dimension: dimension.name)
def test_the_ranks_along_every_dimension_but_pp_have_such_a_group(dimension: MeshDimension) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined] # as above
    try:
        group = Group(0, 1, "gloo", torch.device("cpu"))
        made = device_mesh._create_dim_group(torch.arange(1), 0, dimension, group, LONG)
        assert isinstance(made, AbortableGloo) is (dimension.name != "pp")
    finally:
        dist.destroy_process_group()
