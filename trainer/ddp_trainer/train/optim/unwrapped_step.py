"""Step an optimizer without what torch puts around its step for those who look on, while nobody does.

torch wraps ``Optimizer.step`` twice: in a mark for the profiler and a search for hooks, and in a switch of autograd
that asks for the compiler. That is 15 us a step, as much as a layer of a small model. Where no profiler runs and there
are no hooks, what is inside is called directly. The wrappers are private: where they are not those that are known here,
as with an optimizer of another kind, its step is called as everybody calls it, and a test fails where torch's own have
changed.
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
"""Code of torch around a step, from the outside in."""


class OptimizerStep:
    """A call steps the optimizer."""

    __slots__ = ("_inside", "_no_grad", "_optimizer")

    def __init__(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer
        self._no_grad = torch.no_grad()
        self._inside = None if optimizer.defaults.get("differentiable", True) else inside(type(optimizer))

    def __call__(self) -> None:
        """Move the weights by their gradients."""
        optimizer = self._optimizer
        with uncompiled():
            if self._inside is None or _is_watched(optimizer):
                optimizer.step()
            else:
                with self._no_grad:
                    self._inside(optimizer)


def inside(kind: type[Optimizer]) -> Callable[[Optimizer], Any] | None:
    """The step of this kind of optimizer without torch's wrappers; None where it has others."""
    step: Any = kind.step
    for wrapper in _WRAPPERS:
        if getattr(getattr(step, "__code__", None), "co_qualname", None) != wrapper:
            return None
        step = getattr(step, "__wrapped__", None)
    return step if callable(step) else None


def _is_watched(optimizer: Optimizer) -> bool:
    """Whether a profiler, a hook, or someone who has put a step of his own in place, wants to know of it."""
    try:
        return bool(
            optimizer._optimizer_step_pre_hooks  # noqa: SLF001 - there is no public question
            or optimizer._optimizer_step_post_hooks  # noqa: SLF001 - as above
            or torch_optimizer._global_optimizer_pre_hooks  # noqa: SLF001 - as above
            or torch_optimizer._global_optimizer_post_hooks  # noqa: SLF001 - as above
            or torch.autograd._profiler_enabled()  # type: ignore[attr-defined]  # noqa: SLF001 - as above
            or "step" in vars(optimizer)
        )
    except AttributeError:
        return True
