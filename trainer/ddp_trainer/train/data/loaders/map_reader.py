"""Reading of one slice from a map-style data set, with the same random draws in any process.

Draws of a data set that returns one sample per call are keyed by (seed, epoch, sample). An augmented sample is
therefore the same on any rank and in any batch. Draws of a data set that returns many samples per call are keyed by
(seed, step, slice), because they cannot be assigned to single samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.utils.data import default_collate

from ddp_trainer.train.data.batch_reader import many_reader
from ddp_trainer.train.data.keyed_rng import KeyedRng, Stream
from ddp_trainer.train.data.loaders.base import Feed, FetchResult, Request, Stateful
from ddp_trainer.train.data.task import Batch, Samples, is_rowwise
from ddp_trainer.train.utils.errors import BadData, BadSample


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
