"""Precision and random streams of a rank's pipeline stages.

The schedule calls stages, not the task's losses. The wrappers of :mod:`ddp_trainer.train.transforms.model_transforms`
around the losses therefore do not reach them; :class:`StageComputation` applies the same to each stage. Activations
between stages have the dtype of the weights. The receiving stage casts them down again where one process would.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from ddp_trainer.common.enums import PrecisionName
from ddp_trainer.train.data.keyed_rng import KeyedRng
from ddp_trainer.train.transforms.precision import precision_context


class StageComputation:
    """Wrapper of one rank's stages, in place: autocast and keyed random streams."""

    def __init__(self, own: Mapping[int, nn.Module], precision: PrecisionName, seed: int, device: torch.device) -> None:
        """Wrap the stages in place.

        Args:
            own: This rank's modules, by their number in the pipeline.
            precision: The precision in which they compute.
            seed: The seed of the run.
            device: The device of the modules.
        """
        self._random = KeyedRng(seed, device)
        self._context = precision_context(precision, device)
        self._key = 0
        self._passes = dict.fromkeys(own, 0)
        for number, module in own.items():
            module.forward = self._computed(module.forward, number)

    def begin(self) -> None:
        """Start a step; the random stream of its samples must be the current one."""
        self._key = torch.initial_seed()
        self._passes = dict.fromkeys(self._passes, 0)

    def _computed(self, forward: Callable[..., Any], number: int) -> Callable[..., Any]:
        def run(stream: torch.Tensor) -> Any:
            if stream.is_meta or not torch.is_grad_enabled():
                return forward(stream)
            # Keyed by stage and micro-batch, which every schedule passes in order: all schedules draw the same numbers.
            self._random.go_on(self._key, number, self._passes[number])
            self._passes[number] += 1
            with self._context():
                return forward(stream)

        return run
