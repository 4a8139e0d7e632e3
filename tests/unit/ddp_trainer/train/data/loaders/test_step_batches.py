"""Portions that are worked out for many steps at once are what the plan says of each."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_trainer.train.data.batch_plan import BatchPlan, StepBatches, StepPlan, digest, owned
from tests.support.train_builders import slice_ids


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    batch = draw(st.integers(1, 40))
    return BatchPlan(
        samples=draw(st.integers(1, 90)),
        global_batch=batch,
        batch_slices=draw(st.integers(1, batch)),
        seed=draw(st.integers(0, 3)),
        epochs=draw(st.integers(1, 3)),
        sequential=draw(st.booleans()),
    )


def assert_is_of(portion: StepPlan, plan: BatchPlan, batch_slices: range, step: int) -> None:
    assert portion.step == step
    assert torch.equal(portion.ids, plan.batch(step))
    assert portion.samples == len(plan.batch(step)) == plan.batch_length(step)
    assert portion.digest == digest(plan.batch(step))
    own = {
        slice_index: slice_ids(plan, step, slice_index)
        for slice_index in batch_slices
        if len(slice_ids(plan, step, slice_index))
    }
    assert [request.slice_index for request in portion.own] == list(own)
    for request in portion.own:
        assert (request.step, request.epoch) == (step, plan.epoch_of(step))
        assert torch.equal(request.ids, own[request.slice_index])
    assert portion.own_samples == sum(map(len, own.values()))
    assert portion.own_digest == sum(map(digest, own.values()))


@given(plan=plans(), data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_portion_is_what_the_plan_says_in_whatever_order_they_are_asked_for(
    plan: BatchPlan, data: st.DataObject
) -> None:
    world = data.draw(st.integers(1, plan.batch_slices))
    rank = data.draw(st.integers(0, world - 1))
    batch_slices = owned(plan.batch_slices, world, rank)
    portions = StepBatches(plan, batch_slices)
    first = data.draw(st.integers(0, plan.total_steps - 1))
    for step in [*range(first, plan.total_steps), first]:
        assert_is_of(portions.of(step), plan, batch_slices, step)


def test_a_step_far_larger_than_what_is_hashed_at_once_has_its_portion_too() -> None:
    plan = BatchPlan(samples=70_000, global_batch=30_000, batch_slices=7, seed=1, epochs=2)
    portions = StepBatches(plan, range(5, 7))
    for step in range(plan.total_steps):
        assert_is_of(portions.of(step), plan, range(5, 7), step)


def test_other_slices_count_from_the_next_step_on() -> None:
    plan = BatchPlan(samples=40, global_batch=8, batch_slices=4, seed=2, epochs=1)
    portions = StepBatches(plan, range(2))
    assert_is_of(portions.of(0), plan, range(2), 0)
    portions.assign_slices(range(3))
    assert_is_of(portions.of(1), plan, range(3), 1)
