"""Digests that are worked out for many steps at once are those of the samples of each."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_trainer.train.digests import Digests
from ddp_trainer.train.plan import Plan, digest


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    batch = draw(st.integers(1, 40))
    return Plan(
        samples=draw(st.integers(1, 90)),
        global_batch=batch,
        shards=draw(st.integers(1, batch)),
        seed=draw(st.integers(0, 3)),
        epochs=draw(st.integers(1, 3)),
        sequential=draw(st.booleans()),
    )


@given(plan=plans(), data=st.data())
@settings(max_examples=30)
def test_every_shard_of_every_step_has_the_digest_of_its_samples(plan: Plan, data: st.DataObject) -> None:
    digests = Digests(plan)
    first = data.draw(st.integers(0, plan.total_steps - 1))
    for step in [*range(first, plan.total_steps), first]:
        assert digests.batch(step) == digest(plan.batch(step))
        for shard in range(plan.shards):
            assert digests.shard(step, shard) == digest(plan.shard(step, shard))


def test_steps_far_larger_than_what_is_hashed_at_once_have_theirs_too() -> None:
    plan = Plan(samples=70_000, global_batch=30_000, shards=7, seed=1, epochs=2)
    digests = Digests(plan)
    for step in range(plan.total_steps):
        assert digests.batch(step) == digest(plan.batch(step))
        assert digests.shard(step, 6) == digest(plan.shard(step, 6))
