"""Call an optimizer's step without torch's wrappers, unless a hook or a profiler needs them.

torch wraps ``Optimizer.step`` twice: in a profiler mark with a search for hooks, and in a switch of autograd that
queries the compiler. That takes 15 us per step, as much as a layer of a small model. Without a profiler and hooks,
:class:`OptimizerStep` calls the inner function directly. The wrappers are private. If an optimizer has other wrappers,
its step is called normally; a test fails if torch's own have changed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch.optim import Optimizer
from torch.optim import optimizer as torch_optimizer

from ddp_trainer.train.utils.dynamo_stub import uncompiled

_WRAPPERS: Final = (
    "Optimizer.profile_hook_step.<locals>.wrapper",
    "_use_grad_for_differentiable.<locals>._use_grad",
)
"""Qualified names of torch's wrappers around a step, outermost first."""


class OptimizerStep:
    """Callable that steps one optimizer."""

    __slots__ = ("_inside", "_no_grad", "_optimizer")

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._no_grad = torch.no_grad()
        self._inside = None if optimizer.defaults.get("differentiable", True) else inside(type(optimizer))

    def __call__(self) -> None:
        """Update the weights with their gradients."""
        optimizer = self._optimizer
        with uncompiled():
            if self._inside is None or _is_watched(optimizer):
                optimizer.step()
            else:
                with self._no_grad:
                    self._inside(optimizer)


def inside(kind: type[Optimizer]) -> Callable[[Optimizer], Any] | None:
    """Return the step function of an optimizer class without torch's wrappers; None if it has other wrappers."""
    step: Any = kind.step
    for wrapper in _WRAPPERS:
        if getattr(getattr(step, "__code__", None), "co_qualname", None) != wrapper:
            return None
        step = getattr(step, "__wrapped__", None)
    return step if callable(step) else None


def _is_watched(optimizer: Optimizer) -> bool:
    """Return True if a profiler, a hook, or a replaced ``step`` has to see the call."""
    try:
        return bool(
            optimizer._optimizer_step_pre_hooks  # noqa: SLF001 - torch has no public query
            or optimizer._optimizer_step_post_hooks  # noqa: SLF001 - as above
            or torch_optimizer._global_optimizer_pre_hooks  # noqa: SLF001 - as above
            or torch_optimizer._global_optimizer_post_hooks  # noqa: SLF001 - as above
            or torch.autograd._profiler_enabled()  # type: ignore[attr-defined]  # noqa: SLF001 - as above
            or "step" in vars(optimizer)
        )
    except AttributeError:
        return True
