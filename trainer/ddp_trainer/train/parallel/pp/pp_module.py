"""How a rank's stages of a pipeline compute: in numbers of which width, and drawing from which random stream.

The schedule calls stages, and not the losses, so what :mod:`ddp_trainer.train.transforms.model_transforms` puts around
those does not reach them. Between stages numbers are as wide as the weights: the one that takes them narrows them again
where one process would have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ddp_trainer.common.enums import PrecisionName
from ddp_trainer.train.data.keyed_rng import KeyedRandom
from ddp_trainer.train.transforms.precision import around


class StageComputation:
    """Of the stages of one rank, changed in place."""

    def __init__(self, own: Mapping[int, nn.Module], precision: PrecisionName, seed: int, device: torch.device) -> None:
        """``own``: modules by their number in the pipeline."""
        self._random = KeyedRandom(seed, device)
        self._context = around(precision, device)
        self._key = 0
        self._passes = dict.fromkeys(own, 0)
        for number, module in own.items():
            module.forward = self._computed(module.forward, number)

    def begin(self) -> None:
        """A step begins, and has entered the random stream that belongs to its samples."""
        self._key = torch.initial_seed()
        self._passes = dict.fromkeys(self._passes, 0)

    def _computed(self, forward: Callable[..., Any], number: int) -> Callable[..., Any]:
        def run(stream: torch.Tensor) -> Any:
            if stream.is_meta or not torch.is_grad_enabled():
                return forward(stream)
            # By stage and micro-batch, which every schedule passes on in order: so all schedules draw the same.
            self._random.go_on(self._key, number, self._passes[number])
            self._passes[number] += 1
            with self._context():
                return forward(stream)

        return run
