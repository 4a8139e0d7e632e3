"""Digits that come slowly to one rank, and digits that come as a stream."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import Any

from torch import Tensor

from ddp_workloads.digits import Digits, LabeledImages


class _SlowImages(LabeledImages):
    def batch(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        if os.environ.get("SLOW_RANK") == os.environ["RANK"]:
            time.sleep(0.004 * len(ids))
        return super().batch(ids)


class SlowDigits(Digits):
    """The rank in SLOW_RANK takes 4 ms longer for each image."""

    def train_samples(self) -> LabeledImages:
        return _SlowImages(self._train.images, self._train.labels)


class _Endless:
    """The digits in order, over and over."""

    def __init__(self, images: LabeledImages) -> None:
        self._images = images

    def __iter__(self) -> Iterator[Any]:
        while True:
            for index in range(len(self._images)):
                yield self._images[index]


class StreamedDigits(Digits):
    """A stream without end and without a state."""

    def train_samples(self) -> _Endless:  # type: ignore[override] # another kind of samples
        return _Endless(self._train)


class _Resumable(_Endless):
    """Knows where it stands, and notes how many it has read."""

    at = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.at += 1
            yield self._images[(self.at - 1) % len(self._images)]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class ResumableDigits(StreamedDigits):
    """A stream without end, with a state."""

    def train_samples(self) -> _Resumable:  # type: ignore[override] # another kind of samples
        return _Resumable(self._train)
