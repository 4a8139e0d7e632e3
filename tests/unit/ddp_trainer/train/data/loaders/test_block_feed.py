"""Feed of samples in blocks: a rank reads its own batch slices only, and a resumed one nothing that was seen."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import OnBadSample
from ddp_trainer.train.data.batch_plan import BatchPlan, StepBatches, owned
from ddp_trainer.train.data.loaders.base import Feed
from ddp_trainer.train.data.loaders.factory import make_feed
from ddp_trainer.train.data.sample_order import BlockTable, uniform_blocks
from ddp_trainer.train.utils.errors import BadConfig, BadData, BadSample

SAMPLES = 1000
CPU = torch.device("cpu")


class Stored:
    """Numbers in blocks of 20, which count how often each was read and cannot all be decoded."""

    def __init__(self, bad: frozenset[int] = frozenset(), missing: int | None = None) -> None:
        self.blocks: BlockTable = uniform_blocks(torch.tensor([600, 400]), 20)
        self.read: Counter[int] = Counter()
        self._bad, self._missing = bad, missing

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return self.decode(self.read_block(index, 1)[0])

    def read_block(self, first: int, count: int) -> list[int]:
        if self._missing in range(first, first + count):
            raise BadData(f"The shard of {first} is gone.")
        self.read.update(range(first, first + count))
        return list(range(first, first + count))

    def decode(self, record: int) -> int:
        if record in self._bad:
            raise BadSample(f"Sample {record} is broken.")
        return record


def plan_of(stored: Stored) -> BatchPlan:
    return BatchPlan(samples=SAMPLES, global_batch=32, batch_slices=8, seed=3, epochs=2, blocks=stored.blocks)


def steps_of(feed: Feed, plan: BatchPlan, batch_slices: range, steps: range) -> list[int]:
    """Fetch the samples of some steps, as a rank with these batch slices does, and return them."""
    batches = StepBatches(plan, batch_slices)
    requests = [request for step in steps for request in batches.of(step).own]
    fetched = [feed.fetch(request).batch for request in requests]
    return [value for batch in fetched if batch is not None for value in batch.tolist()]


def test_resizes_within_an_epoch_use_every_sample_once_and_read_little_twice() -> None:
    """The worlds 4, 3, 1 and 2 share an epoch; each rank of each world is a new process."""
    worlds = ((4, range(9)), (3, range(9, 16)), (1, range(16, 20)), (2, range(20, 32)))
    used: list[int] = []
    read: Counter[int] = Counter()
    for world, steps in worlds:
        for rank in range(world):
            stored = Stored()
            plan = plan_of(stored)
            assert steps.stop <= plan.steps_per_epoch
            feed = make_feed(stored, plan, owned(8, world, rank), Config(), CPU)
            used += steps_of(feed, plan, owned(8, world, rank), steps)
            feed.close()
            read.update(stored.read)

    assert sorted(used) == list(range(SAMPLES))
    # What was read ahead and not used is read again: at most two blocks of each of the 8 lanes, at 3 resizes.
    assert sum(read.values()) <= SAMPLES + 3 * 8 * 2 * 20


def test_a_rank_reads_what_its_slices_use_and_each_sample_once() -> None:
    stored = Stored()
    plan = plan_of(stored)
    feed = make_feed(stored, plan, range(2, 4), Config(), CPU)

    used = steps_of(feed, plan, range(2, 4), range(plan.steps_per_epoch))

    assert stored.read == Counter(used)
    assert max(stored.read.values()) == 1


def test_the_next_epoch_is_read_in_another_order() -> None:
    stored = Stored()
    plan = plan_of(stored)
    feed = make_feed(stored, plan, range(8), Config(), CPU)
    per_epoch = plan.steps_per_epoch

    first = steps_of(feed, plan, range(8), range(per_epoch))
    second = steps_of(feed, plan, range(8), range(per_epoch, 2 * per_epoch))

    assert sorted(first) == sorted(second)
    assert first != second


def test_a_step_can_be_repeated_after_a_rollback() -> None:
    stored = Stored()
    plan = plan_of(stored)
    feed = make_feed(stored, plan, range(8), Config(), CPU)
    before = steps_of(feed, plan, range(8), range(10))

    assert steps_of(feed, plan, range(8), range(4, 10)) == before[4 * 32 :]


def test_a_sample_that_cannot_be_decoded_is_skipped_on_request() -> None:
    stored = Stored(bad=frozenset({7}))
    plan = plan_of(stored)
    feed = make_feed(stored, plan, range(8), Config(on_bad_sample=OnBadSample.SKIP), CPU)

    used = steps_of(feed, plan, range(8), range(plan.steps_per_epoch))

    assert sorted(used) == sorted(set(range(SAMPLES)) - {7})


def test_an_error_of_a_reading_thread_is_raised_where_the_samples_are_requested() -> None:
    stored = Stored(missing=500)
    plan = plan_of(stored)
    feed = make_feed(stored, plan, range(8), Config(), CPU)

    with pytest.raises(BadData, match="is gone"):
        steps_of(feed, plan, range(8), range(plan.steps_per_epoch))


def test_loader_workers_are_refused() -> None:
    stored = Stored()

    with pytest.raises(BadConfig, match="threads read ahead"):
        make_feed(stored, plan_of(stored), range(8), Config(loader_workers=1), CPU)
