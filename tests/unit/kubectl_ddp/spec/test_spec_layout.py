"""A layout that the nodes, the processes or the batch of a job cannot have is refused before anything is sent."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import pytest

from ddp_trainer.common.constants import Env
from ddp_trainer.common.parallel_dims import DIMENSIONS, LayoutRange
from kubectl_ddp.errors import UsageError
from kubectl_ddp.render.objects import render
from kubectl_ddp.spec import layout
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import warnings
from kubectl_ddp.spec.serialization import spec_from_dict, spec_to_dict
from kubectl_ddp.values.program import Module
from kubectl_ddp.values.quantity import NodeRange
from tests.support.jobs import a_job

INTERLEAVED: Final = "train --task text --model gpt:layers=8 --pipeline-schedule interleaved"


def laid_out(text: str, nodes: str = "1", nproc: int = 2, args: str = "train --task digits", **changes: Any) -> JobSpec:
    parallel = LayoutRange.parse(text)
    return a_job(parallel=parallel, nnodes=NodeRange.parse(nodes), nproc=nproc, args=tuple(args.split()), **changes)


@pytest.mark.parametrize(("given", "sentence"), [
    (("shard=3", "2"), "parallel 'shard=3' has no layout of 4 ranks, which 2 nodes of 2 processes make."),
    (("replicate=1:4,shard=8", "2:4"), "has no layout of 4 ranks, which 2 nodes of 2 processes make."),
    (("replicate=1:2,shard=2", "1:4"), "has no layout of 8 ranks, which 4 nodes of 2 processes make."),
    (("shard=4", "1:2"), "lets the number of ranks change, and parallel 'shard=4' always takes 4."),
    (("tp=4", "2"), "allows tp=4, and a node has 2 processes: slices of a tensor stay"),
    (("tp=1:3,replicate=1:6", "1:3"), "allows tp=3, and a node has 2 processes"),
    (("shard=2,tp=2", "2", 2, "train --global-batch 1"), "A batch of 1 sample cannot feed the 2 replicas and"),
    (("shard=1:3,pp=1:4", "2:4", 1, "train --global-batch 2"), "of 'shard=1:3,pp=1:4' (3 nodes of 1 process)."),
    (("pp=2:4", "2:4", 1, INTERLEAVED), "a step has 13. Give a --micro-batch that makes them a multiple of 3."),
    (("pp=1:1000", "1:1000", 1, INTERLEAVED), "are 8, which cannot fill 2000 stages of a pipeline."),
    (("shard=2", "1", 2, "train --parallel tp=2"), "has --parallel shard=2, and its program --parallel tp=2."),
    (("shard=2", "1", 2, "train --parallel=auto"), "--parallel of the program: 'auto' is not a layout;"),
    (("shard=2", "1", 2, "train --parallel shard=2 --level exact"), "--level exact does not go with --parallel"),
])  # fmt: skip
def test_a_layout_that_does_not_fit_is_one_sentence(given: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=re.escape(sentence)):
        laid_out(*given)


@pytest.mark.parametrize("spec", [
    laid_out("replicate=1:8", "1:8", 1), laid_out("replicate=1:4,tp=2", "1:4"), laid_out("shard=2:8", "2:8", 1),
    laid_out("tp=1:2,replicate=1:8", "1:4"), laid_out("shard=1:4096,replicate=1:1000000", "1:100000", 16),
    laid_out("shard=2,tp=2", "2", 2, "train --global-batch 2"),
    laid_out("pp=2:4", "2:4", 1, f"{INTERLEAVED} --micro-batch 8"),
    laid_out("shard=2", "1", 2, "train --parallel shard=2,tp=1"),
    laid_out("shard=2", "1", 2, "--parallel tp=2", program=Module("own")),
], ids=lambda spec: str(spec.parallel))  # fmt: skip
def test_a_layout_that_fits_is_kept_by_the_document_and_reaches_the_pods(spec: JobSpec) -> None:
    assert spec_from_dict(spec_to_dict(spec)) == spec
    assert f"'name': '{Env.PARALLEL}', 'value': '{spec.parallel}'" in str(render(spec, "r1"))


def test_a_layout_may_be_the_trainers_alone() -> None:
    a_job(args=("train", "--parallel", "tp=2", "--level", "exact"), nnodes=NodeRange(1, 1), nproc=2)


def test_a_job_without_a_layout_says_nothing_of_one() -> None:
    assert "parallel" not in spec_to_dict(a_job())
    assert Env.PARALLEL not in str(render(a_job(), "r1"))


@pytest.mark.parametrize(("text", "nodes", "doubt"), [
    ("replicate=2,shard=3", "3", "some pods have parts of two replicas, and losing one of them loses both."),
    ("replicate=1:2,shard=4", "2:4", "With 3 of nnodes 2:4, 2 ranks of parallel 'replicate=1:2,shard=4' would"),
])  # fmt: skip
def test_a_layout_that_is_odd_is_doubted(text: str, nodes: str, doubt: str) -> None:
    assert any(doubt in str(warning) for warning in warnings(laid_out(text, nodes)))


@pytest.mark.parametrize("text", ["replicate=2,shard=2", "shard=4", "replicate=4", "tp=2,replicate=2"])
def test_replicas_of_whole_pods_and_pods_of_whole_replicas_are_not_doubted(text: str) -> None:
    found = warnings(laid_out(text, "2"))
    assert not [item for item in found if "parallel" in str(item)]


def test_two_dimensions_within_layers_share_a_pod_as_a_product(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = (replace(one, is_used_in_layers=one.name in {"shard", "tp"}) for one in DIMENSIONS)
    monkeypatch.setattr(layout, "DIMENSIONS", tuple(changed))
    with pytest.raises(UsageError) as info:
        laid_out("shard=2,tp=2", "2")
    assert "allows shard=2 with tp=2, and a node has 2 processes" in info.value.message
    assert info.value.hint == "Give shard and tp whose product divides nproc, or change nproc."
    assert laid_out("shard=2,tp=2", "1", 4).nproc == 4
