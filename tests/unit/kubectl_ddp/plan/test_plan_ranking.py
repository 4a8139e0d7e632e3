"""Layouts in order, and what is said where none fits."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from ddp_trainer.common.model_constraints import Violation
from ddp_trainer.common.parallel_dims import Layout
from kubectl_ddp.errors import PreflightFailed, UsageError
from kubectl_ddp.plan.choice import infeasible_reason, layouts
from kubectl_ddp.plan.known import known
from kubectl_ddp.plan.machine import GPUS, Machine
from kubectl_ddp.plan.nothing import best, require_feasible_plan
from kubectl_ddp.plan.ranking import Plan, plan
from kubectl_ddp.plan.reasons import reason
from kubectl_ddp.plan.recomputation import ALL, NOTHING, Recomputation
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.traffic import PLANNED
from kubectl_ddp.plan.work import Work

H100 = Machine(gpu=GPUS["H100"], nodes=1, per_node=8, far_bytes=GPUS["H100"].far_bytes, reserved_bytes=4 * 2**30)
GPT2 = known("gpt2")
LLAMA = known("llama-7b")
STEP = Work(sequence=1024, global_batch=64)
NO = Violation("Not so.", "Do it in another way.")


def test_every_layout_of_a_world_is_looked_at_once() -> None:
    found = list(layouts(24, PLANNED))
    assert len(found) == len(set(found))
    # 24 = 2^3 * 3: three factors of two among four dimensions, and one of three: C(6, 3) * 4.
    assert len(found) == 20 * 4
    assert {layout.world for layout in found} == {24}


def test_a_small_model_is_best_replicated() -> None:
    assert best(GPT2, STEP, H100) == Layout(replicate=8)


def test_a_model_whose_states_do_not_fit_one_gpu_is_sharded() -> None:
    assert best(LLAMA, STEP, H100) == Layout(shard=8)


def test_what_does_not_fit_stands_behind_with_what_it_takes() -> None:
    found = plan(LLAMA, STEP, H100)
    miss = found.too_large[0]
    assert miss.choice.layout == Layout(replicate=8)
    assert reason(miss, H100).startswith("Takes 1")
    assert "the most of it for optimizer" in reason(miss, H100)


def test_layouts_that_fit_are_ordered_by_their_step_and_fit() -> None:
    found = plan(LLAMA, STEP, replace(H100, nodes=4))
    steps = [way.timing.step_seconds for way in found.fitting]
    assert all(later > earlier / 1.03 for earlier, later in itertools.pairwise(steps))
    assert all(way.memory.total <= H100.available_bytes for way in found.fitting)
    assert len(found.fitting) + len(found.too_large) + len(found.impossible) == len(list(layouts(32, PLANNED)))


def test_slices_within_a_node_are_ahead_of_those_whose_replicas_need_a_slow_network() -> None:
    slow = replace(H100, nodes=2, far_bytes=1e8)
    ranked = [way.choice.layout for way in plan(GPT2, STEP, slow).fitting]
    assert ranked[0].pp == 2


@pytest.mark.parametrize(
    ("layout", "sentence"),
    [
        (Layout(tp=16), "tp=16 is more than the 8 GPUs of a node."),
        (Layout(tp=8), "tp=8 does not divide the 12 heads."),
        (Layout(pp=16), "pp=16 is more than the 12 layers."),
        (Layout(shard=128), "128 parts of a batch are more than its 64 samples."),
        (Layout(shard=32, pp=4), "2 micro-batches of a step are too few for pp=4."),
        (Layout(replicate=2, tp=2, pp=4), ""),
    ],
)
def test_what_a_model_cannot_be_laid_out_as_is_said(layout: Layout, sentence: str) -> None:
    assert infeasible_reason(layout, GPT2, STEP, H100) == sentence


def test_where_nothing_fits_the_nearest_miss_and_the_nodes_that_help_are_named() -> None:
    with pytest.raises(PreflightFailed, match=r"175B parameters on 8 H100 on one node: the nearest, ") as raised:
        best(known("gpt3-175b"), STEP, H100)
    assert raised.value.exit_code == 4
    assert "(--nnodes " in raised.value.hint
    nodes = int(raised.value.hint.split("--nnodes ")[1].split(")")[0])
    assert plan(known("gpt3-175b"), STEP, replace(H100, nodes=nodes)).fitting
    assert not plan(known("gpt3-175b"), STEP, replace(H100, nodes=nodes // 2)).fitting


@pytest.mark.parametrize(
    ("said", "way_out"),
    [
        ({"micro_batch": 64, "global_batch": 512}, "without --micro-batch."),
        ({"sequence": 8192, "micro_batch": 8, "recomputation": NOTHING}, "without --micro-batch."),
        ({"sequence": 2**16, "recomputation": NOTHING}, "with --activation-checkpointing."),
        ({"sequence": 2**16, "recomputation": Recomputation(32)}, "without --recompute."),
        (
            {"sequence": 2**16, "micro_batch": 8, "recomputation": NOTHING},
            "without --micro-batch and with --activation-checkpointing.",
        ),
    ],
)
def test_what_was_said_and_is_in_the_way_is_named_and_nothing_else(said: dict[str, Any], way_out: str) -> None:
    with pytest.raises(PreflightFailed) as raised:
        best(LLAMA, replace(STEP, **{"sequence": 2**14} | said), H100)
    assert raised.value.hint == f"It fits {way_out}"


def test_a_way_that_is_refused_makes_room_for_the_next_of_its_layout() -> None:
    first = plan(LLAMA, STEP, H100).fitting[0]
    found = plan(LLAMA, STEP, H100, lambda choice: NO if choice == first.choice else None)
    same = next(way for way in found.fitting if way.choice.layout == first.choice.layout)
    assert same.choice != first.choice
    assert not found.refused


def test_a_layout_whose_every_way_is_refused_is_told_with_the_reason() -> None:
    found = plan(LLAMA, STEP, H100, lambda choice: NO if choice.layout.shard > 1 else None)
    assert all(way.choice.layout.shard == 1 for way in found.fitting)
    assert found.refused[0].way.choice.layout == Layout(shard=8)
    assert {each.violation for each in found.refused} == {NO}
    nothing = plan(LLAMA, STEP, H100, lambda _: NO)
    assert not nothing.fitting
    with pytest.raises(UsageError, match=r"Not so\. No layout fits that goes with it\.") as raised:
        require_feasible_plan(nothing)
    assert raised.value.hint == NO.help


def test_where_no_layout_can_be_had_the_obstacle_is_named() -> None:
    odd = Shape(layers=1, hidden=64, heads=1, vocabulary=256, window=32)
    with pytest.raises(PreflightFailed, match="There is no layout for a model"):
        best(odd, Work(sequence=32, global_batch=1), H100)


def test_a_gpu_of_its_own_waits_for_nobody() -> None:
    alone = replace(H100, per_node=1)
    found: Plan = plan(GPT2, replace(STEP, recomputation=NOTHING), alone)
    require_feasible_plan(found)
    assert reason(found.fitting[0], alone) == "It is one GPU without communication."


def test_recomputing_and_idling_are_given_as_reasons() -> None:
    found = plan(GPT2, replace(STEP, recomputation=ALL), replace(H100, per_node=1))
    assert reason(found.fitting[0], found.machine) == "Computing activations again takes 15 % of the step."
    found = plan(GPT2, replace(STEP, micro_batch=8), H100)
    piped = next(way for way in found.fitting if way.choice.layout == Layout(replicate=4, pp=2))
    assert reason(piped, H100) == "The pipeline idles for 31 % of the step."
