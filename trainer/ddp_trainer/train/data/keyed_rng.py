"""Random streams keyed by (seed, step, slice), and not by rank, process or clock.

A dropout mask therefore belongs to a batch slice of a global step. It is the same on any rank and in any repetition,
and no generator state has to be saved. :class:`KeyedRng` seeds the generators.
"""

from __future__ import annotations

import random
import sys
from enum import IntEnum
from typing import Final

import torch

from ddp_trainer.train.utils.splitmix import mix, mix_on


class Stream(IntEnum):
    """Purpose of the random numbers."""

    WEIGHTS = 1
    """Initial weights; not keyed by step and slice."""
    FETCH = 2
    """Augmentation while samples are fetched."""
    MODEL = 3
    """Draws of the model in forward and backward, such as dropout."""
    SAMPLE = 4
    """Augmentation of one sample; keyed by epoch and sample instead of step and slice."""


_OF_USERS_CODE: Final = frozenset({Stream.WEIGHTS, Stream.FETCH, Stream.SAMPLE})
"""Streams in which user code may also draw from Python's and NumPy's generators. A forward pass uses torch's only."""
_NUMPY_SEEDS: Final = 0xFFFF_FFFF


class KeyedRng:
    """Seeds torch's default generators, and outside of the model also those of Python and NumPy."""

    def __init__(self, seed: int, device: torch.device) -> None:
        # Mixing proceeds from left to right, so mix the part that is the same in every step only once.
        self._begun = {stream: mix(seed, stream) for stream in Stream}
        self._cuda = device.type == "cuda"

    def enter(self, stream: Stream, step: int = 0, slice_index: int = 0) -> None:
        """Seed the generators for a stream.

        Args:
            stream: Purpose of the following draws.
            step: Global step, or the epoch for ``Stream.SAMPLE``.
            slice_index: Batch slice, or the sample id for ``Stream.SAMPLE``.
        """
        key = self._seed(mix_on(self._begun[stream], step, slice_index))
        if stream in _OF_USERS_CODE:
            random.seed(key)
            # torch imports NumPy if it is installed. If it is not imported, no code draws from it.
            if (numpy := sys.modules.get("numpy")) is not None:
                numpy.random.seed(key & _NUMPY_SEEDS)

    def go_on(self, key: int, *numbers: int) -> None:
        """Seed torch's generators for a substream of a model: ``key`` mixed with ``numbers``."""
        self._seed(mix_on(key, *numbers))

    def _seed(self, key: int) -> int:
        # torch.manual_seed() seeds every kind of accelerator and takes 140 us; this takes 1 us.
        torch.default_generator.manual_seed(key)
        if self._cuda:
            torch.cuda.manual_seed(key)
        return key
