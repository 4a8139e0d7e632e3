"""Random streams keyed by (seed, step, shard): never by rank, process or clock.

So a dropout mask belongs to a logical shard of a global step, wherever and however often that shard is computed,
and there is no generator state to save.
"""

from __future__ import annotations

import random
import sys
from enum import IntEnum
from typing import Final

import torch

from ddp_trainer.train.utils.splitmix import mix, mix_on


class Stream(IntEnum):
    """What the numbers are drawn for."""

    WEIGHTS = 1
    """Initial weights; has no step or shard."""
    FETCH = 2
    """Augmentation while samples are fetched."""
    MODEL = 3
    """Dropout and the like, forward and backward."""
    SAMPLE = 4
    """Augmentation of one sample; keyed by epoch and sample in place of step and shard."""


_OF_USERS_CODE: Final = frozenset({Stream.WEIGHTS, Stream.FETCH, Stream.SAMPLE})
"""In which Python's and NumPy's own generators are drawn from as well; a forward pass draws from torch's."""
_NUMPY_SEEDS: Final = 0xFFFF_FFFF


class KeyedRandom:
    """Puts torch's default generators, and Python's and NumPy's outside of the model, at the start of a stream."""

    def __init__(self, seed: int, device: torch.device) -> None:
        # Mixing goes from left to right, so what is the same in every step is mixed once.
        self._begun = {stream: mix(seed, stream) for stream in Stream}
        self._cuda = device.type == "cuda"

    def enter(self, stream: Stream, step: int = 0, shard: int = 0) -> None:
        """Draw from here on what belongs to this stream."""
        key = self._seed(mix_on(self._begun[stream], step, shard))
        if stream in _OF_USERS_CODE:
            random.seed(key)
            # torch imports it where it is installed; what nobody imported nobody draws from.
            if (numpy := sys.modules.get("numpy")) is not None:
                numpy.random.seed(key & _NUMPY_SEEDS)

    def go_on(self, key: int, *numbers: int) -> None:
        """Let a model draw from here on from the part, of these numbers, of a stream that begins with ``key``."""
        self._seed(mix_on(key, *numbers))

    def _seed(self, key: int) -> int:
        # torch.manual_seed() would visit every kind of accelerator: 140 us where this takes 1.
        torch.default_generator.manual_seed(key)
        if self._cuda:
            torch.cuda.manual_seed(key)
        return key
