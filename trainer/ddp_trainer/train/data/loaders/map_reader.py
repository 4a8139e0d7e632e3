"""Read the samples of one shard from a map-style data set, here or in a worker process: with the same random draws.

A data set that gives one sample at a time has its draws keyed by (seed, epoch, sample), so an augmented sample is the
same wherever, and beside whichever others, it is read. One that gives many at once has them keyed by (seed, step,
shard), since what belongs to which sample cannot be told.
"""

from __future__ import annotations

import torch
from torch.utils.data import default_collate

from ddp_trainer.train.data.batch_reader import many_reader
from ddp_trainer.train.data.keyed_rng import KeyedRandom, Stream
from ddp_trainer.train.data.loaders.request import Fetched, Request
from ddp_trainer.train.data.task import Batch, Samples, is_rowwise
from ddp_trainer.train.utils.errors import BadData, BadSample


class ShardReader:
    """From a request to its samples."""

    def __init__(self, samples: Samples, random: KeyedRandom, *, skips: bool) -> None:
        """``skips``: leave out what cannot be read."""
        self._samples = samples
        self._many = many_reader(samples)
        self._draws = not is_rowwise(samples)
        self._random = random
        self._skips = skips

    def read(self, request: Request) -> Fetched:
        """Read them all.

        Raises:
            BadSample: one cannot be read, and is not to be skipped.
        """
        if self._many is not None:
            if self._draws:
                self._random.enter(Stream.FETCH, request.step, request.shard)
            try:
                return Fetched(self._many(request.ids))
            except BadSample:
                if not self._skips:
                    raise
        return self._one_by_one(request)

    def _one_by_one(self, request: Request) -> Fetched:
        read, skipped = [], []
        for index in request.ids.tolist():
            self._random.enter(Stream.SAMPLE, request.epoch, index)
            try:
                read.append(self._samples[index])
            except BadSample as err:
                if not self._skips:
                    raise
                skipped.append(err.message)
        return Fetched(default_collate(read) if read else None, tuple(skipped))


def first_batch(samples: Samples) -> Batch:
    """The first sample that can be read, by itself as a batch on the CPU: for a pass of which nothing counts.

    Raises:
        BadData: none can be read.
    """
    reader = ShardReader(samples, KeyedRandom(0, torch.device("cpu")), skips=True)
    for index in range(len(samples)):
        batch = reader.read(Request(0, 0, 0, torch.tensor([index]))).batch
        if batch is not None:
            return batch
    raise BadData(f"None of the {len(samples)} samples can be read.", hint="Check the data.")
