"""Backward pass of a mean over the samples of all slices and ranks, of which this rank has only some.

The pass starts with the weight of each loss in the mean as its gradient, one number for all losses. Sum and division as
operations on the losses would join the graph and cost 10 us more in every pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


class ScaledBackward:
    """Callable that adds the gradients of ``losses.sum() / samples`` to the weights."""

    def __init__(self, averaged_over: int = 1) -> None:
        """Prepare the pass.

        Args:
            averaged_over: Number of ranks over which gradients are averaged later. The gradients are multiplied by
                it, so that the average equals the sum. 1 if gradients are summed.
        """
        self._ranks = averaged_over
        self._run = _engine()
        self._made: tuple[object, ...] = ()
        self._gradient = torch.empty(0)

    def __call__(self, losses: Tensor, samples: int) -> None:
        """Run the backward pass.

        Args:
            losses: Losses of this pass, one per sample.
            samples: Number of samples of the whole global step.
        """
        if self._run is None:
            torch.autograd.backward(losses.sum() * (self._ranks / samples))
            return
        wanted = samples, losses.shape, losses.dtype
        if wanted != self._made:
            each = torch.tensor(self._ranks / samples, dtype=losses.dtype, device=losses.device)
            self._made, self._gradient = wanted, each.expand(losses.shape)
        self._run(losses, self._gradient)


@lru_cache(maxsize=1)
def _engine() -> Callable[[Tensor, Tensor], None] | None:
    """Return the function behind :func:`torch.autograd.backward`; None if this version of torch has no such function.

    The public function accepts gradients as well, but it compares shapes symbolically and therefore imports sympy.
    """
    try:
        run: Any = torch.autograd.graph._engine_run_backward  # noqa: SLF001 - tested below

        def backward(losses: Tensor, gradients: Tensor) -> None:
            run((losses,), (gradients,), False, False, (), allow_unreachable=True, accumulate_grad=True)

        weight = torch.ones(2, requires_grad=True)
        backward(weight * 3, torch.full((2,), 0.5))
        tried = weight.grad
    except (AttributeError, TypeError, RuntimeError):
        return None
    return backward if tried is not None and tried.tolist() == [1.5, 1.5] else None
