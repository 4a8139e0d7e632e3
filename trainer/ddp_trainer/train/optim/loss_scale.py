"""The loss scale of fp16: gradients below 6e-8 would vanish, so the loss is scaled up, and gradients down again.

torch's GradScaler keeps the scale; the decision to skip a step is taken by the vote, so that all ranks take it. Its
state is part of the checkpoint.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer


class LossScale:
    """Grows while gradients stay finite, and is halved when they do not."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._scaler = self._made(None)
        self._parts: list[Any] = []
        self._witness = torch.zeros((), device=device)
        self._of_witness = _part([self._witness])

    def _made(self, state: dict[str, Any] | None) -> GradScaler:
        scaler = GradScaler(self._device.type)
        if state:
            scaler.load_state_dict(state)
        # It makes its scale when it first scales something, which a rank without samples, or losses, never does.
        scaler.scale(torch.zeros((), device=self._device))
        return scaler

    @property
    def value(self) -> float:
        """The factor by which the loss is scaled up; on a GPU, reading it waits for the device."""
        return self._scaler.get_scale()

    def up(self, losses: Tensor) -> Tensor:
        """The losses to differentiate."""
        scaled: Tensor = self._scaler.scale(losses)
        return scaled

    def down(self, optimizer: Optimizer) -> None:
        """Gradients as they would be without a scale."""
        if not self._parts:
            # Of a spread model some weights may be in pieces and others whole, which no kernel takes at once.
            by_kind: dict[type, list[Tensor]] = {}
            for weight in (weight for group in optimizer.param_groups for weight in group["params"]):
                by_kind.setdefault(type(weight), []).append(weight)
            self._parts = [_part(weights) for weights in by_kind.values()]
        for part in self._parts:
            self._scaler.unscale_(part)
        if not any(weight.grad is not None for part in self._parts for weight in part.param_groups[0]["params"]):
            # Of a stage whose weights are all frozen: a scaler that has seen no gradient at all cannot be updated, and
            # this scale is to grow with those of the other stages.
            self._witness.grad = torch.zeros_like(self._witness)
            self._scaler.unscale_(self._of_witness)

    def stepped(self) -> None:
        """The step counted; after many, the scale doubles."""
        self._scaler.update()

    def back_off(self) -> bool:
        """The step does not count: halve the scale; False where it is too small already to be the cause."""
        before = self._scaler.get_scale()
        if before <= 1:
            return False
        state = self._scaler.state_dict()
        self._scaler.update(before * self._scaler.get_backoff_factor())
        self._scaler.load_state_dict({**state, "scale": self._scaler.get_scale(), "_growth_tracker": 0})
        return True

    def abandon(self) -> None:
        """The step under way counts nowhere: what was found in its gradients is void, and the scale stays."""
        self.load_state_dict(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Numbers only."""
        return self._scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any] | None) -> None:
        """Go on from a stored scale, or begin anew; what was found in the gradients of a step under way is void."""
        self._scaler = self._made(state)


def _part(weights: list[Tensor]) -> Any:
    """Some weights, as much of an optimizer as a scaler looks at."""
    return SimpleNamespace(param_groups=[{"params": weights}])
