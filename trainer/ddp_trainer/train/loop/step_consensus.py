"""Commit vote: one small all-reduce per step, after which all ranks take the same decision.

In :func:`decide_step` every rank reports its number of samples, the hash of their ids, its part of the loss, and
whether it wants to stop or to save. :func:`check` compares the sums with the plan; the optimizer steps only if they
match. A failure before the vote leaves every rank at the previous step. The step is then repeated, never half applied.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import torch
from torch import Tensor

from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.utils.errors import PeerFailed, WrongSamples

NO_WORD: Final = (0.0, 0.0, 0.0, 0.0)
"""Times of a rank that reports no times."""


class StepReport(NamedTuple):
    """Report of one rank about a step."""

    samples: int
    digest: int
    """:func:`ddp_trainer.train.data.batch_plan.digest` of the ids that it processed."""
    loss: Tensor
    """Sum of its samples' losses, a scalar on the device."""
    failed: bool = False
    stop: bool = False
    save: bool = False
    skipped: int = 0
    """Samples among them that could not be read."""
    flaw: Tensor | None = None
    """Result of :meth:`~ddp_trainer.train.optim.optimizer.OptimizerWrapper.check_grads`, a scalar on the device."""
    busy: Sequence[float] = ()
    """From :meth:`~ddp_trainer.train.parallel.load_balancer.LoadBalancer.cost_vector`; empty without balancing."""
    time: Sequence[float] = NO_WORD
    """From :meth:`~ddp_trainer.train.loop.goodput_tracker.GoodputTracker.time_report`."""


class StepDecision(NamedTuple):
    """Sum of the reports of all ranks; each flag is the number of ranks that set it."""

    samples: int
    digest: int
    loss: float
    failed: int
    stop: int
    save: int
    skipped: int
    flaw: float
    busy: Sequence[float]
    time: Sequence[float] = NO_WORD

    @property
    def is_finite(self) -> bool:
        """True if the loss and all gradients are finite on all ranks."""
        return math.isfinite(self.loss) and self.flaw == 0


def decide_step(ballot: StepReport, group: Group) -> StepDecision:
    """Sum the reports of all ranks; this is the only point of a step at which the host waits for the device."""
    numbers = _read(ballot) if group.world_size == 1 else group.read(group.sum(_written(ballot, group.device)))
    samples, digest, loss, failed, stop, save, skipped, flaw, *more = numbers
    time, busy = tuple(more[: len(NO_WORD)]), tuple(more[len(NO_WORD) :])
    return StepDecision(
        int(samples), int(digest), loss, int(failed), int(stop), int(save), int(skipped), flaw, busy, time
    )


def _written(ballot: StepReport, device: torch.device) -> Tensor:
    """Return the report as float64 vector: counts and sums of 32-bit hashes stay far below 2^53, so they are exact."""
    if device.type == "cpu":
        return torch.tensor(_read(ballot), dtype=torch.float64)
    # The page is pinned, because a copy from pageable memory would wait for the GPU before the exchange.
    flags = (ballot.failed, ballot.stop, ballot.save)
    numbers = [ballot.samples, ballot.digest, 0, *flags, ballot.skipped, 0, *ballot.time, *ballot.busy]
    page = _host_buffer(len(numbers), is_pinned=device.type == "cuda")
    page.copy_(torch.tensor(numbers, dtype=torch.float64))
    sums = page.to(device, non_blocking=True)
    sums[2] = ballot.loss
    if ballot.flaw is not None:
        sums[7] = ballot.flaw
    return sums


@lru_cache(maxsize=4)
def _host_buffer(size: int, *, is_pinned: bool) -> Tensor:
    """Return the reusable host buffer of a report; it is free again once the decision was read, so one is enough."""
    return torch.empty(size, dtype=torch.float64, pin_memory=is_pinned)


def _read(ballot: StepReport) -> list[float]:
    flags = (ballot.failed, ballot.stop, ballot.save)
    flaw = 0.0 if ballot.flaw is None else ballot.flaw.item()
    counts = (ballot.samples, ballot.digest, ballot.loss.item(), *flags, ballot.skipped, flaw)
    return [*counts, *ballot.time, *ballot.busy]


def check(verdict: StepDecision, *, step: int, samples: int, digest: int) -> None:
    """Check that the step can be committed.

    Args:
        verdict: The decision of the vote.
        step: Number of the step, for messages.
        samples: Number of samples in the step, by the plan.
        digest: Sum of the hashes of their ids, by the plan.

    Raises:
        PeerFailed: A rank failed in this step.
        WrongSamples: The ranks together processed other samples than the plan defines.
    """
    if verdict.failed:
        raise PeerFailed(f"{verdict.failed} of the other ranks failed in step {step}.", hint="They say why.")
    if verdict.samples != samples:
        raise WrongSamples(
            f"The ranks processed {verdict.samples} samples in step {step}, which has {samples}.",
            hint="Check that all ranks run the same code with the same flags.",
        )
    if verdict.digest != digest:
        raise WrongSamples(
            f"The ranks processed {samples} samples in step {step}, but not the ones that belong to it.",
            hint="Check that all ranks run the same code with the same flags.",
        )
