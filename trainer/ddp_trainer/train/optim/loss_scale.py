"""Loss scale for fp16, where gradients below 6e-8 underflow.

:class:`LossScale` scales the loss up and the gradients down again. torch's GradScaler holds the scale. The vote of all
ranks decides to skip a step, so that all ranks skip it. The state is part of the checkpoint.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer


class LossScale:
    """Scale that grows while gradients stay finite, and is halved if they do not."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._scaler = self._build_scaler(None)
        self._parts: list[Any] = []
        self._witness = torch.zeros((), device=device)
        self._of_witness = _part([self._witness])

    def _build_scaler(self, state: dict[str, Any] | None) -> GradScaler:
        scaler = GradScaler(self._device.type)
        if state:
            scaler.load_state_dict(state)
        # GradScaler creates its scale at the first loss, which a rank without samples or losses never has.
        scaler.scale(torch.zeros((), device=self._device))
        return scaler

    @property
    def value(self) -> float:
        """Factor on the loss; on a GPU, reading it waits for the device."""
        return self._scaler.get_scale()

    def up(self, losses: Tensor) -> Tensor:
        """Return the scaled losses, from which gradients are computed.

        Args:
            losses: Float losses of any shape, on the device.
        """
        scaled: Tensor = self._scaler.scale(losses)
        return scaled

    def down(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the scale, in place."""
        if not self._parts:
            # In a sharded model, some weights are DTensors and others are not; no kernel accepts both in one call.
            by_kind: dict[type, list[Tensor]] = {}
            for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
                by_kind.setdefault(type(weight), []).append(weight)
            self._parts = [_part(weights) for weights in by_kind.values()]
        for part in self._parts:
            self._scaler.unscale_(part)
        if not any(weight.grad is not None for part in self._parts for weight in part.param_groups[0]["params"]):
            # All weights of this stage are frozen. A scaler without any gradient cannot be updated, but this scale has
            # to grow with those of the other stages.
            self._witness.grad = torch.zeros_like(self._witness)
            self._scaler.unscale_(self._of_witness)

    def update(self) -> None:
        """Record a committed step; after many of them, the scale doubles."""
        self._scaler.update()

    def back_off(self) -> bool:
        """Halve the scale after a skipped step; False if it is already too small to be the cause."""
        before = self._scaler.get_scale()
        if before <= 1:
            return False
        state = self._scaler.state_dict()
        self._scaler.update(before * self._scaler.get_backoff_factor())
        self._scaler.load_state_dict({**state, "scale": self._scaler.get_scale(), "_growth_tracker": 0})
        return True

    def discard_step(self) -> None:
        """Discard the findings about the current step's gradients and keep the scale."""
        self.load_state_dict(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain numbers."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Load a stored scale, or start with the initial one.

        Findings about the current step's gradients are discarded.
        """
        self._scaler = self._build_scaler(state)


def _part(weights: list[Tensor]) -> Any:
    """Return an object with the attributes of an optimizer that GradScaler reads."""
    return SimpleNamespace(param_groups=[{"params": weights}])
