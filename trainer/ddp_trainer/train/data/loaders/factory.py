"""Choice of the feed for the samples of a run."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sized
from typing import Any, cast

import torch

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Level, OnBadSample
from ddp_trainer.train.data.batch_plan import BatchPlan
from ddp_trainer.train.data.batch_reader import is_stream
from ddp_trainer.train.data.keyed_rng import KeyedRng
from ddp_trainer.train.data.loaders.base import Feed, Stateful
from ddp_trainer.train.data.loaders.block_feed import BlockFeed
from ddp_trainer.train.data.loaders.iterable import StreamFeed
from ddp_trainer.train.data.loaders.map_reader import DirectFeed, RowsFeed, SliceReader
from ddp_trainer.train.data.loaders.worker_loader import LoaderWorkerFeed
from ddp_trainer.train.data.task import BlockSamples, Samples, is_rowwise
from ddp_trainer.train.utils.errors import BadConfig, BadData


def known_count(samples: Samples | Iterable[Any]) -> int:
    """Return the number of samples in one epoch; 0 for a stream without end."""
    return len(samples) if isinstance(samples, Sized) else 0


def sample_count(samples: Samples | Iterable[Any], config: Config) -> int:
    """Return the number of samples in one epoch, or in the whole run for a stream without end.

    Raises:
        BadConfig: The samples are a stream without end, and ``--max-steps`` is not given.
    """
    if isinstance(samples, Sized):
        return len(samples)
    if config.max_steps is None:
        raise BadConfig(
            "The samples are a stream without len(), so the run would have no end.",
            hint="Give --max-steps, or the stream a __len__.",
        )
    return config.max_steps * config.global_batch


def make_feed(
    samples: Samples | Iterable[Any], plan: BatchPlan, batch_slices: range, config: Config, device: torch.device
) -> Feed:
    """Return the feed for the samples of a run.

    Args:
        samples: Training samples of the task.
        plan: Batches of the run.
        batch_slices: Batch slices that this rank owns.
        config: Configuration of the run.
        device: Device that the batches are moved to.

    Raises:
        BadConfig: ``--loader-workers`` is given, but loader workers cannot read these samples.
        BadData: The samples have a state that a checkpoint cannot hold.
    """
    skips = config.on_bad_sample is OnBadSample.SKIP
    stream = is_stream(samples)
    if stateful := isinstance(samples, Stateful):
        _check_loadable_state(samples)
    in_blocks = isinstance(samples, BlockSamples)
    if config.loader_workers and (stream or stateful or in_blocks):
        what = "have a state, which follows the reading"
        if stream or in_blocks:
            what = "are a stream, which each rank reads in order" if stream else "are shards, which threads read ahead"
        raise BadConfig(
            f"--loader-workers is {config.loader_workers}, but the samples {what}.", hint="Leave --loader-workers out."
        )
    random = KeyedRng(config.seed, torch.device("cpu") if config.loader_workers else device)
    if stream:
        return StreamFeed(cast("Iterable[Any]", samples), plan.samples, random, skips=skips)
    if in_blocks:
        return BlockFeed(cast("BlockSamples", samples), plan, batch_slices, random, skips=skips)
    samples = cast("Samples", samples)
    reader = SliceReader(samples, random, skips=skips)
    if not config.loader_workers:
        # EXACT reads each batch separately: the rounding of kernels may depend on where a batch begins in memory.
        ahead_of_time = is_rowwise(samples) and not (skips or stateful or config.level is Level.EXACT)
        return RowsFeed(samples, plan, batch_slices) if ahead_of_time else DirectFeed(samples, reader)
    pin = device.type == "cuda"
    workers = config.loader_workers
    return LoaderWorkerFeed(reader, plan, batch_slices, loader_workers=workers, prefetch=config.prefetch, pin=pin)


def _check_loadable_state(samples: Stateful) -> None:
    """Refuse a state that a checkpoint cannot load, before a checkpoint is needed."""
    buffer = io.BytesIO()
    torch.save(samples.state_dict(), buffer)
    buffer.seek(0)
    try:
        torch.load(buffer, weights_only=True)
    except Exception as err:
        raise BadData(
            f"The state_dict() of the samples ({type(samples).__name__}) holds what a checkpoint does not load for "
            "safety.",
            hint="Let it hold tensors, numbers, strings, lists and dicts only.",
        ) from err
