"""Norm of gradients, and a check on the device that they are finite.

The result of the check is part of the vote, so the host does not wait for the device a second time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor, nn


def total_norm(gradients: Sequence[Tensor]) -> Tensor:
    """Return the norm of all gradients together, a scalar on the device."""
    return nn.utils.get_total_norm(list(gradients))


def nonfinite_flag(gradients: Sequence[Tensor], norm: Tensor | None = None, zero: Tensor | None = None) -> Tensor:
    """Return a scalar on the device: 0 if every gradient is finite, else 1 or NaN.

    The sum over ranks is 0 only if all gradients of all ranks are finite.

    Args:
        gradients: Gradients of this rank.
        norm: Norm of the gradients if it is known; the result is then derived from it.
        zero: Earlier result that is known to be 0. Its memory is reused, which saves a kernel launch.
    """
    if norm is None and gradients:
        try:
            return _found(gradients, zero)
        except (AttributeError, RuntimeError):
            # The kernel of GradScaler is fastest (4 us; a norm takes 20 us), but it is not public and does not support
            # sparse gradients.
            norm = total_norm(gradients)
    norm = total_norm(gradients) if norm is None else norm
    return norm - norm


def _found(gradients: Sequence[Tensor], zero: Tensor | None) -> Tensor:
    device = gradients[0].device
    found = torch.zeros((), device=device) if zero is None else zero
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, _one(device))  # type: ignore[arg-type,unused-ignore] # a list
    return found


@lru_cache(maxsize=4)
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)
