"""Real processes exchange subtrees, large and small, evenly owned or not: the bits are those of one process alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.local.workloads import train_wire
from tests.local.workloads.train_group import WorkerGroup


@pytest.mark.parametrize(("world", "batch_slices"), [(2, 8), (3, 7)])
def test_sums_over_the_wire_have_the_bits_of_one_rank_alone(world: int, batch_slices: int, tmp_path: Path) -> None:
    program = ("-m", train_wire.__name__)
    with WorkerGroup(world, [], directory=tmp_path, program=program, env={"TREE_SLICES": str(batch_slices)}) as group:
        (report,) = group.events()
        assert group.finish() == [0] * world, group.stderr()
    assert report["together"] == [report["alone"]] * 5
