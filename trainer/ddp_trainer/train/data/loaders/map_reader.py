"""Reading from a map-style data set, with the same random draws in any process.

Draws of a data set that returns one sample per call are keyed by (seed, epoch, sample). An augmented sample is
therefore the same on any rank and in any batch. Draws of a data set that returns many samples per call are keyed by
(seed, step, slice), because they cannot be assigned to single samples.

A data set whose rows are independent of each other is read several steps at a time (:class:`RowsFeed`). Indexing two
tensors takes 20 us, for the rows of one step as well as of many. Samples that were read ahead equal samples that are
read later, because such a data set draws no random numbers. The amount is bounded, so that the data is still in the
processor's cache when its last step uses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils.data import default_collate

from ddp_trainer.train.data.batch_plan import BatchPlan, cut
from ddp_trainer.train.data.batch_reader import many_reader
from ddp_trainer.train.data.keyed_rng import KeyedRng, Stream
from ddp_trainer.train.data.loaders.base import Feed, FetchResult, Request, Stateful
from ddp_trainer.train.data.task import Batch, Samples, is_rowwise
from ddp_trainer.train.utils.errors import BadData, BadSample, BadTask


class SliceReader:
    """Reads the samples of a request from a map-style data set."""

    def __init__(self, samples: Samples, random: KeyedRng, *, skips: bool) -> None:
        """``skips`` leaves out samples that cannot be read."""
        self._samples = samples
        self._many = many_reader(samples)
        self._draws = not is_rowwise(samples)
        self._random = random
        self._skips = skips

    def read(self, request: Request) -> FetchResult:
        """Return the samples of a request.

        If a read of many samples fails and ``skips`` is true, they are read one by one.

        Raises:
            BadSample: A sample cannot be read, and ``skips`` is false.
        """
        if self._many is not None:
            if self._draws:
                self._random.enter(Stream.FETCH, request.step, request.slice_index)
            try:
                return FetchResult(self._many(request.ids))
            except BadSample:
                if not self._skips:
                    raise
        return self._one_by_one(request)

    def _one_by_one(self, request: Request) -> FetchResult:
        read, skipped = [], []
        for index in request.ids.tolist():
            self._random.enter(Stream.SAMPLE, request.epoch, index)
            try:
                read.append(self._samples[index])
            except BadSample as err:
                if not self._skips:
                    raise
                skipped.append(err.message)
        return FetchResult(default_collate(read) if read else None, tuple(skipped))


class DirectFeed(Feed):
    """Feed that reads in the training process, without reading ahead."""

    def __init__(self, samples: Samples, reader: SliceReader) -> None:
        self._samples = samples
        self._reader = reader

    def fetch(self, request: Request) -> FetchResult:
        """Read the samples of a request."""
        return self._reader.read(request)

    def state_dict(self) -> dict[str, Any] | None:
        """Return the state of the samples, or None if they have none."""
        return {"samples": self._samples.state_dict()} if isinstance(self._samples, Stateful) else None

    def load_state_dict(self, state: Mapping[str, Any] | None) -> None:
        """Restore the state of the samples, if they have one."""
        if state is not None and isinstance(self._samples, Stateful):
            self._samples.load_state_dict(state["samples"])


def first_batch(samples: Samples) -> Batch:
    """Return a batch on the CPU of the first sample that can be read, for a pass whose result is not used.

    Raises:
        BadData: No sample can be read.
    """
    reader = SliceReader(samples, KeyedRng(0, torch.device("cpu")), skips=True)
    for index in range(len(samples)):
        batch = reader.read(Request(0, 0, 0, torch.tensor([index]))).batch
        if batch is not None:
            return batch
    raise BadData(f"None of the {len(samples)} samples can be read.", hint="Check the data.")


_BYTES_AT_ONCE: Final = 1 << 18
_STEPS_AT_ONCE: Final = 1 << 8


class RowsFeed(Feed):
    """Feed that reads some steps ahead in the training process."""

    def __init__(self, samples: Samples, plan: BatchPlan, batch_slices: range) -> None:
        """``samples`` have a rowwise ``batch`` method; ``batch_slices`` are those that this rank owns."""
        self._read = many_reader(samples)
        self._plan = plan
        self._batch_slices = batch_slices
        self._steps = 1
        self._ready: dict[tuple[int, int], FetchResult] = {}

    def fetch(self, request: Request) -> FetchResult:
        """Return the samples of a request, from memory if they were read ahead.

        Otherwise this step and some of the following steps are read.

        Raises:
            BadTask: ``batch`` does not return one row per id.
        """
        key = request.step, request.slice_index
        if key not in self._ready:
            self._read_from(request.step)
        return self._ready.pop(key)

    def _read_from(self, first: int) -> None:
        plan = self._plan
        length = plan.batch_length(first)
        steps = range(first, first + min(plan.num_equal_steps(first), self._steps))
        cuts = {slice_index: cut(length, plan.batch_slices, slice_index) for slice_index in self._batch_slices}
        sizes = {
            slice_index: where.stop - where.start for slice_index, where in cuts.items() if where.start < where.stop
        }
        # The slices of a rank are contiguous, and therefore its samples too.
        own = slice(cuts[self._batch_slices[0]].start, cuts[self._batch_slices[-1]].stop)
        ids = plan.batches(steps)[:, own].reshape(-1)
        assert self._read is not None  # noqa: S101 - a rowwise batch method exists
        batch = self._read(ids)
        pieces = split(batch, [*sizes.values()] * len(steps))
        keys = ((step, slice_index) for step in steps for slice_index in sizes)
        self._ready = dict(zip(keys, map(FetchResult, pieces), strict=True))
        step_bytes = max(1, _bytes(batch) // len(steps))
        self._steps = max(1, min(_STEPS_AT_ONCE, _BYTES_AT_ONCE // step_bytes))

    def assign_slices(self, batch_slices: range) -> None:
        """Change the slices that this rank owns, and discard what was read ahead for others."""
        self._batch_slices = batch_slices
        self._ready = {}


def split(batch: Batch, sizes: Sequence[int]) -> Sequence[Batch]:
    """Split a collated batch into consecutive batches of these sizes.

    Raises:
        BadTask: A part of the batch does not have ``sum(sizes)`` rows.
    """
    if isinstance(batch, Tensor) and batch.dim() and len(batch) == sum(sizes):
        return batch.split(list(sizes))  # type: ignore[no-any-return,no-untyped-call] # torch's
    if isinstance(batch, Mapping) and batch:
        columns = [split(value, sizes) for value in batch.values()]
        return [dict(zip(batch, row, strict=True)) for row in zip(*columns, strict=True)]
    if isinstance(batch, tuple | list) and batch:
        rows = zip(*(split(value, sizes) for value in batch), strict=True)
        return [type(batch)(*row) if hasattr(batch, "_fields") else type(batch)(row) for row in rows]
    kind, count = type(batch).__name__, sum(sizes)
    raise BadTask(
        f"The samples are marked rowwise, and batch() of {count} ids gave a {kind} of {_rows(batch)}.",
        hint="Let it return tensors whose first dimension counts the ids, or take the mark away.",
    )


def _rows(batch: Batch) -> str:
    try:
        return f"{len(batch)} rows"
    except TypeError:
        return "no rows"


def _bytes(batch: Batch) -> int:
    if isinstance(batch, Tensor):
        return batch.nbytes
    return sum(map(_bytes, batch.values() if isinstance(batch, Mapping) else batch))
