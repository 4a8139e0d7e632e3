"""What ``scale`` says about the ranks of a job with a layout."""

from __future__ import annotations

from typing import Any

import pytest

from ddp_trainer.common.constants import Annotation
from ddp_trainer.common.layout_range import LayoutRange
from kubectl_ddp.cli.jobs.scale import left_over
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.render import render
from kubectl_ddp.values.quantity import Nodes
from tests.support.jobs import a_job


def submitted(**changes: Any) -> Any:
    return job_kinds.root_of(render(a_job(nnodes=Nodes(2, 4), nproc=1, **changes), "run1"))


def test_ranks_that_make_no_whole_replica_are_told() -> None:
    job = submitted(parallel=LayoutRange.parse("replicate=1:2,shard=2"))
    assert [left_over(job, ranks) for ranks in (2, 3, 4)] == [
        "",
        " Its layout 'replicate=1:2,shard=2' has no place for 1 of 3 ranks.",
        "",
    ]


@pytest.mark.parametrize("parallel", ["", "ring=4"])
def test_nothing_is_said_of_a_layout_that_is_not_known(parallel: str) -> None:
    job = submitted()
    assert left_over(job, 3) == ""
    job["metadata"]["annotations"][Annotation.SPEC] = f'{{"parallel": "{parallel}"}}'
    assert left_over(job, 3) == ""
