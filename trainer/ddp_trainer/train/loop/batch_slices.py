"""Fetching of a rank's part of a step: :func:`fetch_slices` yields what is computed together, on the device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from ddp_trainer.common.time_classes import Phase, StartupPhase
from ddp_trainer.process import startup_times
from ddp_trainer.train.data.batch_parts import merge
from ddp_trainer.train.data.batch_reader import to_device
from ddp_trainer.train.data.loaders.base import BatchSlice, Request
from ddp_trainer.train.data.loaders.step_batches import StepPlan
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.loop.group_components import GroupComponents


@dataclass(slots=True)
class StepResult:
    """Result of this rank's part of a step."""

    samples: int = 0
    """Number of its samples."""
    digest: int = 0
    """:func:`ddp_trainer.train.data.batch_plan.digest` of their ids."""
    loss: Tensor | None = None
    """Sum of their losses, a float64 scalar on the device; None without samples."""
    skipped: int = 0
    """Number of samples that could not be read; they have weight 0."""
    error: Exception | None = None
    """Error while samples were fetched; raised after the vote."""


def fetch_slices(parts: GroupComponents, batch: StepPlan, result: StepResult) -> Iterator[BatchSlice]:
    """Yield this rank's samples of a step, each slice when the one before is computed.

    Batch slices are yielded one by one, so that their results do not depend on the rank. If the components merge
    slices, all samples of the rank are one slice, with the random stream of the first. If a fetch fails, the error is
    stored in ``result``, and nothing more is fetched.

    Args:
        parts: Components of this group.
        batch: Plan of the step.
        result: Receives the number of skipped samples and the error.
    """
    fetched: list[tuple[Batch, int]] = []
    for request in batch.own:
        samples, count = fetch_slice(parts, request, result)
        if result.error is not None:
            return
        if count and parts.merges_slices:
            fetched.append((samples, count))
        elif count:
            yield BatchSlice(request.slice_index, samples, count, batch.samples, is_last=request is batch.own[-1])
    if fetched:
        merged = merge([samples for samples, _ in fetched])
        count = sum(count for _, count in fetched)
        yield BatchSlice(batch.own[0].slice_index, merged, count, batch.samples, is_last=True)


def fetch_slice(parts: GroupComponents, request: Request, result: StepResult) -> tuple[Batch, int]:
    """Return the samples of a batch slice on the device, and the number of readable ones.

    Args:
        parts: Components of this group.
        request: Batch slice to fetch.
        result: Receives the number of skipped samples and the error.

    Returns:
        The batch and the number of its samples; None and 0 after an error.
    """
    try:
        batch, skipped = parts.feed.fetch(request)
    except Exception as err:  # the user's data set may raise anything
        if parts.strategy.computes_together:
            raise
        result.error = err
        return None, 0
    for sentence in skipped:
        parts.on_skip(sentence)
    result.skipped += len(skipped)
    parts.timer.end_phase(Phase.DATA_WAIT)
    if parts.group.is_starting:
        startup_times.reached(StartupPhase.FIRST_BATCH)
    if parts.group.device.type != "cpu":
        batch = to_device(batch, parts.group.device)
        parts.timer.end_phase(Phase.HOST_TO_DEVICE)
    return batch, request.ids.numel() - len(skipped)
