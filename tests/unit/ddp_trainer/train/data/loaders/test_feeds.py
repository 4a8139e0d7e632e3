"""Loaders give the step the same samples and random draws, with workers, streams, rows and blocks."""

from __future__ import annotations

import itertools
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import IterableDataset

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Level, OnBadSample
from ddp_trainer.train.data.batch_plan import BatchPlan, StepBatches, StepPlan, digest, owned
from ddp_trainer.train.data.loaders.base import MAX_REASONS, Feed, FetchResult, Request, Skips
from ddp_trainer.train.data.loaders.factory import make_feed, sample_count
from ddp_trainer.train.data.sample_order import BlockTable, uniform_blocks
from ddp_trainer.train.data.task import rowwise
from ddp_trainer.train.utils.errors import BadConfig, BadData, BadSample, BadTask, LoaderWorkerLost
from tests.support.train_builders import slice_ids

CPU = torch.device("cpu")
SEED = Config(seed=3)
SKIP = replace(SEED, on_bad_sample=OnBadSample.SKIP)
PLAN = BatchPlan(samples=22, global_batch=8, batch_slices=4, seed=3, epochs=2)
STREAM = replace(PLAN, sequential=True)


class Augmented:
    """Its number, and what was drawn for it; some cannot be read."""

    def __init__(self, count: int = 22, bad: tuple[int, ...] = ()) -> None:
        self._count = count
        self._bad = bad

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> tuple[int, float, float, float]:
        if index in self._bad:
            raise BadSample(f"Sample {index} is broken.", hint="Mend it.")
        return index, float(torch.rand(())), random.random(), float(np.random.rand())  # noqa: NPY002 - as users' code does


class Reading(IterableDataset[int]):
    """A stream of numbers that records its iterators and what they read."""

    def __init__(self, count: int = 22) -> None:
        self.count = count
        self.epoch = -1
        self.begun = self.at = 0
        self.read: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return 22

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def rest(self) -> Iterator[int]:
        self.begun += 1
        while self.at < self.count:
            self.at += 1
            self.read.append((self.epoch, self.at - 1))
            yield 100 * self.epoch + self.at - 1
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        self.at = 0
        return self.rest()


class Resumable(Reading):
    """A stream with a state: its position."""

    def __iter__(self) -> Iterator[int]:
        return self.rest()

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def requests(plan: BatchPlan, batch_slices: range, steps: range) -> Iterator[Request]:
    for step, slice_index in itertools.product(steps, batch_slices):
        if len(ids := slice_ids(plan, step, slice_index)):
            yield Request(step, plan.epoch_of(step), slice_index, ids)


def results(feed: Feed, plan: BatchPlan, batch_slices: range = range(4), steps: range = range(6)) -> list[FetchResult]:
    return [feed.fetch(request) for request in requests(plan, batch_slices, steps)]


def numbers(fetched: list[FetchResult]) -> list[int]:
    return [number for result in fetched for number in result.batch.tolist()]


def a_feed(samples: Any, plan: BatchPlan = PLAN, config: Config = SEED, batch_slices: range = range(4)) -> Feed:
    return make_feed(samples, plan, batch_slices, config, CPU)


def same(one: list[FetchResult], other: list[FetchResult]) -> bool:
    return all(all(map(torch.equal, x.batch, y.batch)) for x, y in zip(one, other, strict=True))


@pytest.mark.parametrize(("workers", "prefetch"), [(1, 1), (2, 3)])
def test_workers_read_what_this_process_would_and_draw_the_same(workers: int, prefetch: int) -> None:
    feed = a_feed(Augmented(), config=replace(SEED, loader_workers=workers, prefetch=prefetch))
    state = torch.get_rng_state()
    ahead = results(feed, PLAN)
    feed.close()
    assert torch.equal(torch.get_rng_state(), state)
    assert same(ahead, results(a_feed(Augmented()), PLAN))


def test_loader_workers_begin_where_the_run_goes_on_and_turn_to_new_slices() -> None:
    feed = a_feed(Augmented(), config=replace(SEED, loader_workers=1), batch_slices=range(2))
    first = results(feed, PLAN, range(2), range(2, 4))
    feed.assign_slices(range(1, 4))
    then = results(feed, PLAN, range(1, 4), range(4, 6))
    feed.close()
    here = a_feed(Augmented())
    assert same(first, results(here, PLAN, range(2), range(2, 4)))
    assert same(then, results(here, PLAN, range(1, 4), range(4, 6)))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_fails_with_its_own_sentence(workers: int) -> None:
    feed = a_feed(Augmented(bad=(7,)), config=replace(SEED, loader_workers=workers))
    with pytest.raises(BadSample, match=r"^Sample 7 is broken\. Mend it\.$"):
        results(feed, PLAN)
    feed.close()


@pytest.mark.parametrize("workers", [0, 1])
def test_a_bad_sample_is_left_out_and_named_and_the_others_stay_as_they_are(workers: int) -> None:
    feed = a_feed(Augmented(bad=(7, 8)), config=replace(SKIP, loader_workers=workers))
    fetched = results(feed, PLAN)
    feed.close()
    skipped = Counter(why for result in fetched for why in result.skipped)
    assert skipped == {"Sample 7 is broken.": 2, "Sample 8 is broken.": 2}
    ids = Counter(int(i) for result in fetched if result.batch is not None for i in result.batch[0])
    assert ids == dict.fromkeys({*range(22)} - {7, 8}, 2)


def test_a_slice_of_bad_samples_alone_has_no_batch() -> None:
    fetched = results(a_feed(Augmented(bad=tuple(range(22))), config=SKIP), PLAN)[0]
    assert (fetched.batch, len(fetched.skipped)) == (None, 2)


class Many(Augmented):
    """Returns a batch in one call."""

    def batch(self, ids: torch.Tensor) -> torch.Tensor:
        if any(int(sample) in self._bad for sample in ids):
            raise BadSample("One of many is broken.")
        return ids


def test_many_samples_of_which_one_is_bad_are_read_one_by_one() -> None:
    fetched = results(a_feed(Many(bad=(7,)), config=SKIP), PLAN, steps=range(3))
    assert [why for result in fetched for why in result.skipped] == ["Sample 7 is broken."]
    with pytest.raises(BadSample, match="One of many"):
        results(a_feed(Many(bad=(7,))), PLAN)


class Dying(Augmented):
    def __getitem__(self, index: int) -> Any:
        signal.raise_signal(signal.SIGKILL)


def test_a_lost_worker_is_an_error_with_the_fix() -> None:
    feed = a_feed(Dying(), config=Config(loader_workers=1))
    with pytest.raises(LoaderWorkerLost, match=r"^DataLoader worker .* memory, or fewer --loader-workers\.$"):
        results(feed, PLAN)
    feed.close()


def test_every_rank_reads_the_stream_and_keeps_its_own() -> None:
    seen = []
    for batch_slices in (range(1), range(1, 4)):
        stream = Reading()
        seen += numbers(results(a_feed(stream, STREAM), STREAM, batch_slices))
        assert stream.begun == 2
    assert sorted(seen) == [100 * epoch + number for epoch in range(2) for number in range(22)]
    assert stream.read == [(epoch, number) for epoch in range(2) for number in range(22)]


def test_a_stream_is_never_read_beyond_the_step_under_way() -> None:
    stream = Reading()
    feed = a_feed(stream, STREAM)
    for step in range(3):
        results(feed, STREAM, range(4), range(step, step + 1))
        assert len(stream.read) == min(8 * (step + 1), 22)


def test_a_stream_without_a_state_is_read_again_up_to_where_the_run_goes_on() -> None:
    stream = Reading()
    got = numbers(results(a_feed(stream, STREAM), STREAM, range(4), range(4, 6)))
    assert got == [100 + number for number in range(8, 22)]
    assert stream.begun == 1


@pytest.mark.parametrize("saved_by", [range(1), range(4)], ids=["a rank that lags", "one that does not"])
@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_stream_with_a_state_goes_on_from_it(saved_by: range, at: int) -> None:
    first = a_feed(Resumable(), STREAM)
    results(first, STREAM, saved_by, range(at))
    state = first.state_dict()
    stream = Resumable()
    again = a_feed(stream, STREAM)
    again.load_state_dict(state)
    expected = numbers(results(a_feed(Resumable(), STREAM), STREAM, range(4), range(at, 6)))
    assert numbers(results(again, STREAM, range(4), range(at, 6))) == expected
    assert len(stream.read) < 44 - (8 * at - 22 * (at // 3)) + 8


def test_a_stream_of_another_length_than_announced_is_an_error() -> None:
    with pytest.raises(BadData, match=r"ended after 20 samples in epoch 1, and the run counts on 22"):
        results(a_feed(Reading(20), STREAM), STREAM)
    with pytest.raises(BadData, match=r"more samples in epoch 1 than its len\(\), 22"):
        results(a_feed(Reading(23), STREAM), STREAM)


def test_a_stream_without_end_needs_a_number_of_steps() -> None:
    assert sample_count(iter([1]), Config(max_steps=5, global_batch=8)) == 40  # type: ignore[arg-type]
    with pytest.raises(BadConfig, match=r"would have no end\. Give --max-steps"):
        sample_count(iter([1]), Config())  # type: ignore[arg-type]


class Stateful(Augmented):
    state: dict[str, Any] = {"phase": 1}  # noqa: RUF012 - replaced, never changed

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_samples_with_a_state_get_it_back() -> None:
    first, second = Stateful(), Stateful()
    first.state = {"phase": 2}
    feed = a_feed(second)
    feed.load_state_dict(a_feed(first).state_dict())
    assert second.state == {"phase": 2}
    feed.load_state_dict(None)
    assert a_feed(Augmented()).state_dict() is None


def test_a_state_that_no_checkpoint_can_load_is_refused_before_training() -> None:
    samples = Stateful()
    samples.state = {"random": random.Random()}
    with pytest.raises(BadData, match=r"state_dict\(\) of the samples \(Stateful\) holds what a checkpoint does not"):
        a_feed(samples)


@pytest.mark.parametrize("samples", [Reading, Stateful])
def test_what_workers_cannot_read_is_refused(samples: Callable[[], Any]) -> None:
    with pytest.raises(BadConfig, match=r"--loader-workers is 2, but the samples .* Leave --loader-workers out"):
        a_feed(samples(), config=Config(loader_workers=2))


def test_skipped_samples_are_named_once_and_not_without_end() -> None:
    messages: list[str] = []
    skips = Skips(messages.append)
    for number in [0, 0, *range(1000), 3]:
        skips(f"Sample {number} is broken.")
    assert messages[0] == "Sample 0 is broken. It counts as seen, with weight 0."
    assert len(messages) == MAX_REASONS + 1
    assert messages[-1].startswith("More samples cannot be read")


class Rows:
    """A table of numbers and their squares that counts how often it is read."""

    def __init__(self, row_bytes: int = 8) -> None:
        self._numbers = torch.arange(22)
        self._padding = torch.zeros(22, row_bytes, dtype=torch.uint8)
        self.reads: list[list[int]] = []

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> Any:
        return self._numbers[index]

    @rowwise
    def batch(self, ids: torch.Tensor) -> dict[str, Any]:
        self.reads.append(ids.tolist())
        return {"number": self._numbers[ids], "more": (self._numbers[ids] ** 2, [self._padding[ids]])}


class Padded(Rows):
    """A row is as long as the longest beside it, so it is not what it would be by itself."""

    def batch(self, ids: torch.Tensor) -> dict[str, Any]:
        return {"number": super().batch(ids)["number"], "length": torch.full((len(ids),), int(ids.max()))}


@pytest.mark.parametrize("batch_slices", [range(4), range(1, 3), range(3, 4)])
def test_rows_of_several_steps_are_read_at_once_and_are_those_of_each_step(batch_slices: range) -> None:
    rows = Rows()
    feed = a_feed(rows, batch_slices=batch_slices)
    for request in requests(PLAN, batch_slices, range(6)):
        batch = feed.fetch(request).batch
        assert batch["number"].tolist() == request.ids.tolist()
        assert batch["more"][0].tolist() == [number**2 for number in request.ids.tolist()]
        assert batch["more"][1][0].shape == (len(request.ids), 8)
    # One read for the size of a row, two of full steps, and one for the last step of each epoch.
    assert len(rows.reads) == 5


def test_rows_are_read_no_further_ahead_than_a_bounded_amount() -> None:
    rows = Rows(row_bytes=1 << 16)
    results(a_feed(rows), PLAN)
    assert max(map(len, rows.reads)) == PLAN.global_batch


def test_rows_read_ahead_are_dropped_where_a_run_goes_on_elsewhere_or_with_other_slices() -> None:
    feed = a_feed(Rows())
    results(feed, PLAN, steps=range(2))
    again = results(feed, PLAN, steps=range(1))
    assert [n for result in again for n in result.batch["number"].tolist()] == PLAN.batch(0).tolist()  # type: ignore[index]
    feed.assign_slices(range(2, 3))
    (one,) = results(feed, PLAN, batch_slices=range(2, 3), steps=range(1, 2))
    assert one.batch["number"].tolist() == slice_ids(PLAN, 1, 2).tolist()  # type: ignore[index]


@pytest.mark.parametrize("level", [Level.ORDERED, Level.EXACT])
def test_a_batch_that_says_nothing_of_its_rows_is_read_for_each_slice(level: Level) -> None:
    feed = a_feed(Padded(), config=replace(SEED, level=level))
    for request in requests(PLAN, range(4), range(6)):
        assert feed.fetch(request).batch["length"].tolist() == [int(request.ids.max())] * len(request.ids)  # type: ignore[index]


def test_where_bits_are_promised_nothing_is_read_ahead() -> None:
    rows = Rows()
    results(a_feed(rows, config=replace(SEED, level=Level.EXACT)), PLAN)
    assert rows.reads == [request.ids.tolist() for request in requests(PLAN, range(4), range(6))]


@pytest.mark.parametrize("made", [torch.zeros(3), torch.tensor(1.0), {"a": torch.zeros(9)}, "text", 5], ids=str)
def test_a_batch_that_has_no_row_for_each_id_is_told_in_a_sentence(made: object) -> None:
    class Odd(Rows):
        @rowwise
        def batch(self, _ids: torch.Tensor) -> Any:
            return made

    with pytest.raises(BadTask, match=r"marked rowwise, and batch\(\) of 8 ids gave a "):
        results(a_feed(Odd()), PLAN, steps=range(1))


SAMPLES = 1000


class Stored:
    """Numbers in blocks of 20 with a count of their reads; some cannot be decoded."""

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


def a_stored_feed(stored: Stored, config: Config | None = None) -> tuple[BatchPlan, Feed]:
    plan = plan_of(stored)
    return plan, make_feed(stored, plan, range(8), config or Config(), CPU)


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
            used += numbers(results(feed, plan, owned(8, world, rank), steps))
            feed.close()
            read.update(stored.read)

    assert sorted(used) == list(range(SAMPLES))
    # What was read ahead and not used is read again: at most two blocks of each of the 8 lanes, at 3 resizes.
    assert sum(read.values()) <= SAMPLES + 3 * 8 * 2 * 20


def test_a_step_can_be_repeated_after_a_rollback() -> None:
    plan, feed = a_stored_feed(Stored())
    before = numbers(results(feed, plan, range(8), range(10)))

    assert numbers(results(feed, plan, range(8), range(4, 10))) == before[4 * 32 :]


def test_a_sample_that_cannot_be_decoded_is_skipped_on_request() -> None:
    plan, feed = a_stored_feed(Stored(bad=frozenset({7})), SKIP)

    assert set(numbers(results(feed, plan, range(8), range(plan.steps_per_epoch)))) == set(range(SAMPLES)) - {7}


def test_an_error_of_a_reading_thread_is_raised_where_the_samples_are_requested() -> None:
    plan, feed = a_stored_feed(Stored(missing=500))

    with pytest.raises(BadData, match="is gone"):
        numbers(results(feed, plan, range(8), range(plan.steps_per_epoch)))


def test_loader_workers_are_refused() -> None:
    with pytest.raises(BadConfig, match="threads read ahead"):
        a_stored_feed(Stored(), Config(loader_workers=1))


@st.composite
def plans(draw: st.DrawFn) -> BatchPlan:
    batch, sequential = draw(st.integers(1, 40)), draw(st.booleans())
    sizes = {"samples": draw(st.integers(1, 90)), "batch_slices": draw(st.integers(1, batch))}
    repeats = {"seed": draw(st.integers(0, 3)), "epochs": draw(st.integers(1, 3))}
    return BatchPlan(global_batch=batch, sequential=sequential, **sizes, **repeats)


def assert_is_of(portion: StepPlan, plan: BatchPlan, batch_slices: range, step: int) -> None:
    assert portion.step == step
    assert torch.equal(portion.ids, plan.batch(step))
    assert portion.samples == len(plan.batch(step)) == plan.batch_length(step)
    assert portion.digest == digest(plan.batch(step))
    for request, expected in zip(portion.own, requests(plan, batch_slices, range(step, step + 1)), strict=True):
        assert torch.equal(request.ids, expected.ids)
        assert request[:3] == expected[:3]
    assert portion.own_samples == sum(len(request.ids) for request in portion.own)
    assert portion.own_digest == sum(digest(request.ids) for request in portion.own)


@given(plan=plans(), data=st.data())
@settings(max_examples=25, deadline=None)
def test_every_portion_is_that_of_the_plan_in_any_order(plan: BatchPlan, data: st.DataObject) -> None:
    world = data.draw(st.integers(1, plan.batch_slices))
    batch_slices = owned(plan.batch_slices, world, data.draw(st.integers(0, world - 1)))
    portions = StepBatches(plan, batch_slices)
    first = data.draw(st.integers(0, plan.total_steps - 1))
    for step in [*range(first, plan.total_steps), first]:
        assert_is_of(portions.of(step), plan, batch_slices, step)


def test_a_step_far_larger_than_what_is_hashed_at_once_has_its_portion_too() -> None:
    plan = BatchPlan(samples=70_000, global_batch=30_000, batch_slices=7, seed=1, epochs=2)
    portions = StepBatches(plan, range(5, 7))
    for step in range(plan.total_steps):
        assert_is_of(portions.of(step), plan, range(5, 7), step)
