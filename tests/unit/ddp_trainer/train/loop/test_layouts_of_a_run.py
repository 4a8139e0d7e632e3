"""``--parallel``: refused layouts, passes per rank, and the rank that reports a batch slice."""

from __future__ import annotations

import pytest
import torch

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.parallel_dims import Layout, LayoutRange
from ddp_trainer.train.cli import main
from ddp_trainer.train.config.config import Config, check_unused_ranks, layout_of
from ddp_trainer.train.config.option_values import Level
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.data.batch_plan import BatchPlan, owned
from ddp_trainer.train.data.loaders.map_reader import first_batch
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.parallel.fsdp import Passes
from ddp_trainer.train.recovery.group_transition import needs_more_ranks
from ddp_trainer.train.utils.errors import BadConfig, BadData, BadSample
from tests.support.train_builders import slice_ids


@pytest.mark.parametrize(
    ("argv", "sentence"),
    [
        (["--parallel", "shards=2"], "--parallel is 'shards=2': 'shards' is not a dimension of a layout"),
        (["--parallel", "shard=2"], "--parallel is shard=2: shard=2 takes 2 ranks, and there is 1"),
        (["--parallel", "shard=2", "--strategy", "manual"], "--strategy manual does not go with --parallel shard=2"),
        (["--parallel", "shard=2", "--level", "exact"], "--level exact does not go with --parallel shard=2"),
        (["--parallel", "shard=2", "--balance", "dynamic"], "--balance dynamic does not go with --parallel shard=2"),
        (["--parallel", "shard=2", "--bucket-mb", "1"], "--bucket-mb does not go with --parallel shard=2"),
        (["--parallel", "pp=2", "--no-gradient-as-bucket-view"], "--no-gradient-as-bucket-view does not go with"),
        (["--parallel", "shard=2", "--fsdp-prefetch", "-1"], "--fsdp-prefetch is -1. Give 0 or more."),
        (["--parallel", "shard=2", "--fsdp-blocks", ","], "--fsdp-blocks is ','. Give names of classes"),
        (["--fsdp-offload"], "--fsdp-offload is of --parallel shard=N, and --parallel is not given."),
        (["--parallel", "replicate=2", "--no-fsdp-reshard"], "--no-fsdp-reshard is of --parallel shard=N"),
    ],
)
def test_wrong_layouts_are_refused(
    argv: list[str], sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    assert main([*argv, "--max-steps", "1"]) == Exit.USAGE
    assert sentence in capsys.readouterr().err


def test_a_layout_of_fewer_ranks_than_there_are_leaves_the_last_ones_without_a_place() -> None:
    assert layout_of(LayoutRange.parse("replicate=1:4,shard=2"), 7) == Layout(replicate=3, shard=2)
    group = Group(6, 7, "gloo", torch.device("cpu"))
    assert not group.is_spare
    group.world_size = 6
    assert group.is_spare
    with pytest.raises(BadConfig, match="shard=2 takes 2 ranks, and there is 1"):
        layout_of(LayoutRange.parse("shard=2"), 1)


@pytest.mark.parametrize(
    "env",
    [
        pytest.param(Environment(world_size=3, local_world_size=3), id="one node"),
        pytest.param(Environment(world_size=6, local_world_size=3, min_ranks=3, max_ranks=6), id="each node"),
        pytest.param(Environment(world_size=4, local_world_size=2, min_ranks=4, max_ranks=4), id="fixed nodes"),
    ],
)
def test_a_layout_that_always_leaves_ranks_over_is_refused(env: Environment) -> None:
    with pytest.raises(BadConfig) as caught:
        check_unused_ranks(LayoutRange.parse("shard=2"), env)
    assert str(caught.value) == (
        f"--parallel is shard=2: that has a place for 2 of the {env.world_size} ranks. Give sizes whose product is "
        f"{env.world_size}, or start fewer; where some are to be spare, give a range, as replicate=1:2,shard=2."
    )


@pytest.mark.parametrize(
    ("parallel", "env"),
    [
        pytest.param("shard=2", Environment(world_size=2, local_world_size=2), id="it fits"),
        pytest.param("shard=2", Environment(world_size=1, local_world_size=1), id="too few, refused elsewhere"),
        pytest.param("replicate=1:2,shard=2", Environment(world_size=3, local_world_size=3), id="a range"),
        pytest.param("shard=2", Environment(world_size=4, local_world_size=2, min_ranks=2, max_ranks=4), id="elastic"),
        pytest.param("shard=2", Environment(world_size=4, local_world_size=2), id="nobody knows of nodes"),
        pytest.param("shard=3", Environment(world_size=5, local_world_size=2), id="nodes are not alike"),
    ],
)
def test_spares_that_may_be_needed_are_taken(parallel: str, env: Environment) -> None:
    check_unused_ranks(LayoutRange.parse(parallel), env)


def test_too_few_ranks_are_waited_for_where_more_may_come() -> None:
    layouts = LayoutRange.parse("replicate=1:2,shard=2")
    assert needs_more_ranks(layouts, 1, max_ranks=4)
    assert not needs_more_ranks(layouts, 2, max_ranks=4)
    assert not needs_more_ranks(layouts, 1, max_ranks=1)
    assert not needs_more_ranks(layouts, 1, max_ranks=None)
    assert not needs_more_ranks(None, 1, max_ranks=4)


def test_one_rank_speaks_for_those_that_compute_the_same_samples() -> None:
    layout = Layout(replicate=2, shard=2, tp=2, pp=2)
    groups = [Group(rank, layout.world, "gloo", torch.device("cpu")) for rank in range(layout.world)]
    assert all(group.counts and group.data_size == layout.world for group in groups)
    for group in groups:
        group.set_layout(layout)
    assert [group.data_rank for group in groups if group.counts] == [0, 1, 2, 3]
    assert {group.data_size for group in groups} == {4}


@pytest.mark.parametrize("level", [Level.ORDERED, Level.FAST])
@pytest.mark.parametrize("most", [None, 1, 3])
@pytest.mark.parametrize("length", [1, 2, 5, 31, 32])
def test_no_rank_makes_more_passes_than_are_waited_for(level: Level, most: int | None, length: int) -> None:
    plan = BatchPlan(samples=length, global_batch=32, batch_slices=8, seed=0, epochs=1)
    passes = []
    for rank in range(3):
        sizes = [len(slice_ids(plan, 0, slice_index)) for slice_index in owned(8, 3, rank)]
        pieces = [sum(sizes)] if level is Level.FAST else sizes
        passes.append(sum(len(range(0, size, most or max(size, 1))) for size in pieces))
    assert Passes(plan, 3, Config(level=level, micro_batch=most)).of(0) == max(passes) >= 1


class _Torn:
    """A data set whose first samples cannot be read."""

    def __init__(self, torn: int) -> None:
        self._torn = torn

    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int) -> torch.Tensor:
        if index < self._torn:
            raise BadSample(f"sample {index} is torn")
        return torch.tensor([index])


def test_an_empty_pass_takes_the_first_sample_that_can_be_read() -> None:
    assert first_batch(_Torn(2)).tolist() == [[2]]
    with pytest.raises(BadData, match="None of the 3 samples can be read"):
        first_batch(_Torn(3))
