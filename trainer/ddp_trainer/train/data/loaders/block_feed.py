"""Reading of samples that are stored in blocks: each rank reads ahead for its batch slices, and nothing else.

A lane is the sequence of samples of one batch slice in an epoch. It follows from the batch plan and the step, so a rank
that takes over a batch slice begins at the next sample, and reads nothing that was seen.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import torch
from torch.utils.data import default_collate

from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.data.keyed_rng import KeyedRng, Stream
from ddp_trainer.train.data.loaders.base import Feed, FetchResult, Request
from ddp_trainer.train.data.task import BlockSamples
from ddp_trainer.train.utils.errors import BadSample

MOST_THREADS: Final = 16
RUNS_AHEAD: Final = 2
"""Runs of a lane in memory or being read: the current one and the next."""

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
        ids = plan.lane(request.step, request.slice_index)
        self._ids = ids
        self._taken = 0
        assert plan.blocks is not None  # noqa: S101 - the factory builds this feed for blocks only
        blocks = plan.blocks.number_of(ids)
        is_start = torch.ones(len(ids), dtype=torch.bool)
        is_start[1:] = (torch.diff(ids) != 1) | (torch.diff(blocks) != 0)
        self._run_starts = is_start.nonzero().view(-1).tolist()
        self._next_run = 0
        self._read, self._threads = read, threads
        self._coming: deque[Future[list[Any]]] = deque()
        self._records: deque[Any] = deque()

    def is_at(self, request: Request) -> bool:
        """Return True if the next record is the first of the request."""
        return (
            request.epoch == self._epoch
            and self._taken < len(self._ids)
            and int(self._ids[self._taken]) == int(request.ids[0])
        )

    def next_record(self) -> Any:
        """Return the next record, and read the following runs ahead."""
        while len(self._coming) < RUNS_AHEAD - bool(self._records) and self._next_run < len(self._run_starts):
            self._coming.append(self._threads.submit(self._read, *self._run(self._next_run)))
            self._next_run += 1
        if not self._records:
            self._records.extend(self._coming.popleft().result())
        self._taken += 1
        return self._records.popleft()

    def _run(self, number: int) -> tuple[int, int]:
        start = self._run_starts[number]
        stop = self._run_starts[number + 1] if number + 1 < len(self._run_starts) else len(self._ids)
        return int(self._ids[start]), stop - start
