"""The backward pass of a mean over more samples than are at hand: those of all shards, of all ranks.

How much a sample's loss counts in the mean is where the pass begins: the gradient of each loss, one number for all. As
operations on the losses, sum and division would join the graph, and cost 10 us more in every pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor


class ScaledBackward:
    """Adds the gradients of ``losses.sum() / samples`` to the weights."""

    def __init__(self, averaged_over: int = 1) -> None:
        """``averaged_over``: ranks by whose number what they add up will be divided, though the sum is wanted."""
        self._ranks = averaged_over
        self._run = _engine()
        self._made: tuple[object, ...] = ()
        self._gradient = torch.empty(0)

    def __call__(self, losses: Tensor, samples: int) -> None:
        """``samples`` are those of the whole global step."""
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
    """What :func:`torch.autograd.backward` calls; None where this version of torch has it in another form.

    The public function takes gradients too, but compares shapes with the compiler's means, and so imports sympy.
    """
    try:
        run: Any = torch.autograd.graph._engine_run_backward  # noqa: SLF001 - tried out below

        def backward(losses: Tensor, gradients: Tensor) -> None:
            run((losses,), (gradients,), False, False, (), allow_unreachable=True, accumulate_grad=True)

        weight = torch.ones(2, requires_grad=True)
        backward(weight * 3, torch.full((2,), 0.5))
        tried = weight.grad
    except (AttributeError, TypeError, RuntimeError):
        return None
    return backward if tried is not None and tried.tolist() == [1.5, 1.5] else None
