"""Tasks that say when they have come to a point, and stay there."""

from __future__ import annotations

import errno
import os
import threading

from torch import Tensor

from ddp_workloads import digits


def say_ready() -> None:
    print('{"event": "ready"}', flush=True)


class Digits(digits.Digits):
    """Prints ``ready`` just before the ranks meet."""

    def __init__(self) -> None:
        super().__init__()
        say_ready()


class _EndlessImages(digits.LabeledImages):
    def batch(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        say_ready()
        threading.Event().wait()
        return super().batch(ids)


class EndlessDigits(digits.Digits):
    """Never comes back from fetching its first samples."""

    def train_samples(self) -> digits.LabeledImages:
        return _EndlessImages(self._train.images, self._train.labels)


class _FailingImages(digits.LabeledImages):
    fetches = 0

    def batch(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        self.fetches += 1
        # Rank 1 of 2 owns four of eight slices: this is the second slice of its third step.
        if os.environ["RANK"] == "1" and self.fetches == 10:
            raise OSError(errno.EIO, "Input/output error")
        return super().batch(ids)


class FailingDigits(digits.Digits):
    """Cannot read a sample of the third step on rank 1."""

    def train_samples(self) -> digits.LabeledImages:
        return _FailingImages(self._train.images, self._train.labels)
