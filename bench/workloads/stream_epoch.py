"""An epoch of shards in an object store, read by worker groups of changing size, and a resume near its end."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.workloads.elastic_epoch import SAMPLES, SEED, Log, Stage
from bench.workloads.sample_loops import IndexSamples, train_reference

VALUE_BYTES: Final = 4096
"""Size of the payload of a sample."""
SHARD_BYTES: Final = 64 * VALUE_BYTES
BLOCK_BYTES: Final = 16 * VALUE_BYTES
INDEX_SHARDS: Final = 10_000
INDEX_SAMPLES: Final = 1000
"""Samples of each shard of the large index."""
BATCH: Final = 32
BATCH_SLICES: Final = 8


def write_epoch(directory: Path) -> int:
    """Write the samples of the epoch, and return the size of their shards in bytes."""
    from ddp_trainer.train.data.shards import write_shards

    samples = ({"number": number, "payload": os.urandom(VALUE_BYTES)} for number in range(SAMPLES))
    write_shards(directory, samples, {"number": "int", "payload": "bytes"}, shard_bytes=SHARD_BYTES)
    return sum(file.stat().st_size for file in directory.glob("*.mds"))


def write_large_index(directory: Path) -> int:
    """Write an index of 10,000 shards, all of which are links to one file; return the number of samples."""
    from ddp_trainer.train.data.shards import write_shards
    from ddp_trainer.train.data.shards.mds_format import INDEX

    samples = ({"number": number} for number in range(INDEX_SAMPLES))
    write_shards(directory, samples, {"number": "int"}, shard_bytes=1 << 30)
    [entry] = json.loads((directory / INDEX).read_text())["shards"]
    written = directory / entry["raw_data"]["basename"]
    entries = []
    for number in range(INDEX_SHARDS):
        name = f"{number:05}.mds"
        os.link(written, directory / name)
        entries.append({**entry, "raw_data": {**entry["raw_data"], "basename": name}})
    (directory / INDEX).write_text(json.dumps({"shards": entries, "version": 2}))
    return INDEX_SHARDS * INDEX_SAMPLES


@dataclass(frozen=True)
class StreamArm:
    """Rank that trains on the shards of a URL, and writes down how many bytes it has read."""

    url: str
    environ: Mapping[str, str]
    """Variables with which clients find the store."""
    reads: Path
    """Directory of the numbers of bytes, one file per process."""

    __name__ = "stream"

    def __call__(self, stage: Stage, log: Log) -> None:
        """Train; a rank is killed in the midst of the step after ``stop``, as the reference trainer is."""
        os.environ |= self.environ
        train_reference(stage, log, _Stream(stage, log, self))


class _Stream(IndexSamples):
    """Samples that are read from shards. Each has its number."""

    def __init__(self, stage: Stage, log: Log, arm: StreamArm) -> None:
        super().__init__(stage, log)
        self._url = arm.url
        self._reads = arm.reads / f"{stage.number:02}-{stage.rank}"

    def train_samples(self) -> Any:
        from ddp_trainer.train.data.shards import ShardedSamples
        from ddp_trainer.train.storage.object_storage import ObjectStorage

        stream, read_range = self._reads.open("w", buffering=1), ObjectStorage.read_range

        def read_and_count(storage: ObjectStorage, key: str, start: int, length: int) -> bytes:
            data = read_range(storage, key, start, length)
            stream.write(f"{len(data)}\n")
            return data

        ObjectStorage.read_range = read_and_count  # type: ignore[method-assign,assignment] # the trainer does not count
        return ShardedSamples(self._url, lambda columns: columns["number"], block_bytes=BLOCK_BYTES)


def bytes_read(reads: Path) -> int:
    """Return the number of bytes that all processes have read from shards."""
    return sum(int(line) for file in reads.iterdir() for line in file.read_text().split())


def resume_seconds(url: str, progress: float) -> tuple[float, float]:
    """Return the time from opening the shards to the first batch, as the first of two ranks.

    Args:
        url: The shards.
        progress: Part of the epoch that is committed.

    Returns:
        Wall seconds, and processor seconds of this process.
    """
    import torch

    from ddp_trainer.train.config.config import Config
    from ddp_trainer.train.data.batch_plan import BatchPlan, SampleTracker, StepBatches, owned
    from ddp_trainer.train.data.loaders.factory import make_feed
    from ddp_trainer.train.data.shards import ShardedSamples

    started, used = time.monotonic(), time.process_time()
    samples = ShardedSamples(url)
    tracker = SampleTracker(len(samples))
    plan = BatchPlan(
        samples=len(samples), global_batch=BATCH, batch_slices=BATCH_SLICES, seed=SEED, epochs=1, blocks=samples.blocks
    )
    step = int(plan.steps_per_epoch * progress)
    owned_slices = owned(BATCH_SLICES, 2, 0)
    feed = make_feed(samples, plan, owned_slices, Config(), torch.device("cpu"))
    portion = StepBatches(plan, owned_slices).of(step)
    for request in portion.own:
        feed.fetch(request)
    tracker.commit(portion.ids)
    seconds = time.monotonic() - started, time.process_time() - used
    feed.close()
    return seconds
