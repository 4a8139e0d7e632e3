"""The commit vote: one small all-reduce per step, after which all ranks know the same things about it.

Every rank says how many samples it processed, the hash of their ids, its part of the loss, and whether it wants to
stop or to save. Only when the sums are what the plan demands of this step does the optimizer move. A failure before
the vote leaves every rank at the step before, so the step is computed again, never half applied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ddp_trainer.train.errors import NotFinite, PeerFailed, WrongSamples
from ddp_trainer.train.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """What one rank says about the step."""

    samples: int
    digest: int
    """:func:`ddp_trainer.train.plan.digest` of the ids that it processed."""
    loss: Tensor
    """Sum of its samples' losses, a scalar on the device."""
    failed: bool = False
    stop: bool = False
    save: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """The ballots of all ranks, added up; flags count the ranks that raised them."""

    samples: int
    digest: int
    loss: float
    failed: int
    stop: int
    save: int


def vote(ballot: Ballot, group: Group) -> Verdict:
    """Exchange ballots: the one place of a step where the device is waited for."""
    numbers = [ballot.samples, ballot.digest, 0, ballot.failed, ballot.stop, ballot.save]
    # Counts and sums of 32-bit hashes stay far below 2^53, so they are exact.
    sums = torch.tensor(numbers, dtype=torch.float64, device=group.device)
    sums[2] = ballot.loss
    with group.watched():  # NCCL reports a lost peer only when the result is read
        samples, digest, loss, failed, stop, save = group.sum(sums).tolist()
    return Verdict(int(samples), int(digest), loss, int(failed), int(stop), int(save))


def check(verdict: Verdict, *, step: int, samples: int, digest: int) -> None:
    """Allow the step to be committed.

    Raises:
        PeerFailed: a rank could not do its part.
        WrongSamples: together the ranks processed other samples than the step demands.
        NotFinite: the loss is infinite or not a number.
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
    if not math.isfinite(verdict.loss):
        raise NotFinite(
            f"The loss of step {step} is {verdict.loss}.",
            hint="Lower --learning-rate, raise --warmup-steps or set --clip-norm, and start from the last checkpoint.",
        )
