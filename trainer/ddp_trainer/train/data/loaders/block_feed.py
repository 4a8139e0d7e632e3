"""Reading of samples that are stored in blocks: each rank reads ahead for its batch slices, and nothing else.

A lane is the sequence of samples of one batch slice in an epoch. It follows from the batch plan and the step, so a rank
that takes over a batch slice begins at the next sample, and reads nothing that was seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Final

from torch.utils.data import default_collate

from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.data.keyed_rng import KeyedRng, Stream
from ddp_trainer.train.data.loaders.base import Feed, FetchResult, Request
from ddp_trainer.train.data.task import BlockSamples
from ddp_trainer.train.utils.errors import BadSample

MOST_THREADS: Final = 16
RUNS_AHEAD: Final = 2
"""Runs of a batch slice in memory or being read: the current one and the next."""

ReadBlock = Callable[[int, int], list[Any]]


class BlockFeed(Feed):
    """Feed that reads runs of adjacent samples in threads, and decodes them when a step requests them."""

    def __init__(
        self, samples: BlockSamples, plan: BatchPlan, batch_slices: range, random: KeyedRng, *, skips: bool
    ) -> None:
        """``batch_slices`` are those that this rank owns; ``skips`` leaves out samples that cannot be decoded."""
        self._samples = samples
        self._plan = plan
        self._random = random
        self._skips = skips
        self._lanes: dict[int, _Lane] = {}
        self._threads = ThreadPoolExecutor(min(MOST_THREADS, max(1, len(batch_slices))), "ddp-block-feed")

    def fetch(self, request: Request) -> FetchResult:
        """Return the samples of a request.

        Raises:
            BadSample: A sample cannot be decoded, and ``skips`` is false.
            BadData: A shard is missing or has changed.
            StorageError: The store cannot be read.
        """
        lane = self._lanes.get(request.slice_index)
        if lane is None or not lane.is_at(request):
            lane = _Lane(self._plan, request, self._samples.read_block, self._threads)
            self._lanes[request.slice_index] = lane
        read, skipped = [], []
        for index in request.ids.tolist():
            record = lane.next_record()
            self._random.enter(Stream.SAMPLE, request.epoch, index)
            try:
                read.append(self._samples.decode(record))
            except BadSample as err:
                if not self._skips:
                    raise
                skipped.append(err.message)
        return FetchResult(default_collate(read) if read else None, tuple(skipped))

    def assign_slices(self, batch_slices: range) -> None:
        """Change the slices that this rank owns, and discard what was read ahead for others."""
        self._lanes = {number: lane for number, lane in self._lanes.items() if number in batch_slices}

    def close(self) -> None:
        """Stop reading ahead."""
        self._lanes = {}
        self._threads.shutdown(wait=False, cancel_futures=True)


class _Lane:
    """Records of one batch slice from one step to the end of the epoch."""

    def __init__(self, plan: BatchPlan, request: Request, read: ReadBlock, threads: ThreadPoolExecutor) -> None:
        self._epoch = request.epoch
        self._runs = plan.slice_runs(request.step, request.slice_index)
        self._read, self._threads = read, threads
        self._coming: deque[tuple[int, Future[list[Any]]]] = deque()
        """Runs that are being read: the first sample, and the records."""
        self._records: deque[Any] = deque()
        self._next = int(request.ids[0])
        """The next sample."""
        self._prefetch()

    def is_at(self, request: Request) -> bool:
        """Return True if the next record is the first of the request."""
        following = self._next if self._records or not self._coming else self._coming[0][0]
        return request.epoch == self._epoch and following == int(request.ids[0])

    def next_record(self) -> Any:
        """Return the next record, and read the following runs ahead."""
        if not self._records:
            self._next, coming = self._coming.popleft()
            self._records.extend(coming.result())
            self._prefetch()
        self._next += 1
        return self._records.popleft()

    def _prefetch(self) -> None:
        for first, count in islice(self._runs, RUNS_AHEAD - bool(self._records) - len(self._coming)):
            self._coming.append((first, self._threads.submit(self._read, first, count)))
