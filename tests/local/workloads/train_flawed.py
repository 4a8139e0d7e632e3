"""Tasks on real digits in which something goes wrong, or is left out, at one known sample."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import torch
from torch import Tensor, nn

from ddp_workloads.digits import Digits, LabeledImages

MARKED = 700
"""The one training sample that is marked; it occurs in one step of every epoch."""
_MARK = -7.0


class PlainDigits(Digits):
    """Without dropout, whose masks would depend on how a slice is cut into passes."""

    name = "plain-digits"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


class MarkedDigits(PlainDigits):
    """Digits with one marked sample; ``flaw`` selects the effect of its mark."""

    name = "marked-digits"

    def __init__(self) -> None:
        super().__init__()
        images = self._train.images.clone()
        images[MARKED, 0] = _MARK
        self._train = LabeledImages(images, self._train.labels)

    def losses(self, model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        images, labels = batch
        marked = images[:, 0] == _MARK
        losses = super().losses(model, (images.clamp(min=0), labels))
        return self.nonfinite_flag(losses, marked) if bool(marked.any()) else losses

    def nonfinite_flag(self, losses: Tensor, marked: Tensor) -> Tensor:
        return torch.where(marked, losses * float("nan"), losses)


class FlawedGradient(MarkedDigits):
    """The loss of the marked sample is finite, and its gradient is not."""

    name = "flawed-gradient"

    def nonfinite_flag(self, losses: Tensor, marked: Tensor) -> Tensor:
        return losses + ((losses * 0).sqrt() * marked)


class FlawedOnce(MarkedDigits):
    """A flaw like a flipped bit in memory: gone when the step is computed again."""

    name = "flawed-once"

    def nonfinite_flag(self, losses: Tensor, marked: Tensor) -> Tensor:
        mark = Path(os.environ["FLAW"])
        if mark.exists():
            return losses
        mark.touch()
        return super().nonfinite_flag(losses, marked)


class Overflowing(MarkedDigits):
    """Gradients of the marked sample are too large for fp16 at the first loss scale."""

    name = "overflowing"

    def nonfinite_flag(self, losses: Tensor, marked: Tensor) -> Tensor:
        return torch.where(marked, losses * 1e3, losses)


class TwoHeads(nn.Module):
    """The second head sees only batches in which the first image begins dark, which is never."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(64, 32)
        self.first = nn.Linear(32, 10)
        self.second = nn.Linear(32, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.body(images).relu()
        return self.second(hidden) if float(images[0, 0]) > 1 else self.first(hidden)


class UnusedDigits(PlainDigits):
    """Some weights take no part."""

    name = "unused-digits"

    def model(self) -> nn.Module:
        return TwoHeads()


class NormalizedDigits(PlainDigits):
    """Digits for a model with running statistics."""

    name = "normalized-digits"

    def model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 10))


class _Deadly(LabeledImages):
    def batch(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        self.fetched = getattr(self, "fetched", 0) + 1
        if self.fetched == int(os.environ.get("FATAL_BATCH", "0")) and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().batch(ids)


class DyingDigits(PlainDigits):
    """Rank 1 dies while it fetches the batch whose number is in ``FATAL_BATCH``, if it is set."""

    def __init__(self) -> None:
        super().__init__()
        self._train = _Deadly(self._train.images, self._train.labels)
