"""Optimizer and learning rate. The rate is a function of the global step, so there is no scheduler state to save."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypedDict

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ddp_trainer.common.enums import OptimizerName
from ddp_trainer.train.config.config import Config, ScheduleName
from ddp_trainer.train.config.options import KernelName, LrScaling
from ddp_trainer.train.data.task import ChoosesOptimizer, Task
from ddp_trainer.train.mesh.grad_norm import flaw, total_norm
from ddp_trainer.train.optim.loss_scale import LossScale
from ddp_trainer.train.optim.unwrapped_step import OptimizerStep
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadConfig

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState

_PEAK: Final = "peak_lr"
_OF_FLAGS: Final = (_PEAK, "foreach", "fused")
"""What a checkpoint does not decide about a group of weights."""


class Kernel(TypedDict):
    """How torch's optimizers are told to go over the weights."""

    foreach: bool | None
    fused: bool | None


_KERNEL: Final[Mapping[KernelName, Kernel]] = {
    KernelName.LOOP: {"foreach": False, "fused": False},
    KernelName.FOREACH: {"foreach": True, "fused": False},
    KernelName.FUSED: {"foreach": False, "fused": True},
}
_TORCHS_CHOICE: Final[Kernel] = {"foreach": None, "fused": None}


class OptimizerWrapper:
    """An optimizer whose learning rate follows the global step."""

    def __init__(
        self,
        optimizer: Optimizer,
        config: Config,
        total_steps: int,
        loss_scale: LossScale | None = None,
        spread: ShardedState | None = None,
    ) -> None:
        """``loss_scale`` is fp16's, and None in every other precision; ``spread`` is that of a spread model."""
        self.optimizer = optimizer
        self._spread = spread
        self._move = OptimizerStep(optimizer)
        self._schedule = config.schedule
        self._warmup = config.warmup_steps
        self._total = total_steps
        self._clip = config.clip_norm
        self._loss_scale = loss_scale
        self._norm: Tensor | None = None
        self._flaw: Tensor | None = None
        self._passed: Tensor | None = None
        self._weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        self.learning_rate = 0.0
        """Rate of the first parameter group in the last step."""
        scale = lr_scale(config)
        for group in optimizer.param_groups:
            group[_PEAK] = group["lr"] * scale

    @classmethod
    def build(
        cls,
        task: Task,
        model: nn.Module,
        config: Config,
        total_steps: int,
        loss_scale: LossScale | None = None,
        spread: ShardedState | None = None,
    ) -> OptimizerWrapper:
        """The task's own optimizer, or the one that the flags name.

        Raises:
            BadConfig: the optimizer has no kernel of the kind that was asked for.
        """
        with uncompiled():
            if isinstance(task, ChoosesOptimizer):
                optimizer = task.optimizer(model.parameters())
                if spread is not None:
                    spread.demand_same(optimizer, task)
            else:
                optimizer = _optimizer(model, config, lacks_fused=spread is not None and not _fuses_pieces(config))
        return cls(optimizer, config, total_steps, loss_scale, spread)

    def scaled(self, losses: Tensor) -> Tensor:
        """The losses to differentiate: with fp16 scaled up, against gradients that vanish."""
        return losses if self._loss_scale is None else self._loss_scale.up(losses)

    @property
    def loss_scale(self) -> float:
        """By how much; 1 in every other precision."""
        return 1.0 if self._loss_scale is None else self._loss_scale.value

    @property
    def norm(self) -> float | None:
        """Of the whole gradient of the last step, before it was clipped; None where nobody needed it."""
        return None if self._norm is None else float(self._norm)

    def examine(self) -> Tensor:
        """Look at the gradients of a step before it is voted on; see :func:`ddp_trainer.train.mesh.grad_norm.flaw`."""
        if self._loss_scale is not None:
            self._loss_scale.down(self.optimizer)
        gradients = [gradient for weight in self._weights if (gradient := weight.grad) is not None]
        if self._spread is not None:
            norm_of, pieces = self._spread.norm, self._spread.pieces(gradients)
        else:
            norm_of, pieces = total_norm, gradients
        self._norm = norm_of(gradients) if self._clip is not None or self._loss_scale is not None else None
        self._flaw = flaw(pieces, self._norm, self._passed)
        self._passed = None
        return self._flaw

    def step(self, step: int) -> None:
        """Move the weights by the gradients of this global step, which were examined."""
        factor = rate_factor(self._schedule, step, self._warmup, self._total)
        for group in self.optimizer.param_groups:
            group["lr"] = group[_PEAK] * factor
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
        if self._clip is not None and self._norm is not None:
            # Of a spread model some gradients may be in pieces and others whole, which no kernel takes at once.
            at_once = None if self._spread is None else False
            nn.utils.clip_grads_with_norm_(self._weights, self._clip, self._norm, foreach=at_once)
        self._move()
        # Nobody would step by gradients with a flaw: that answer was 0, and will do for the next one.
        self._passed = self._flaw
        if self._loss_scale is not None:
            self._loss_scale.stepped()

    def back_off(self) -> bool:
        """The gradients of a step overflowed: lower the loss scale; False where that is not the cause."""
        return self._loss_scale is not None and self._loss_scale.back_off()

    def forget(self) -> None:
        """Drop gradients, those of a step that was not committed included."""
        self._norm = None
        # What the optimizer's own zero_grad() comes to, without its profiler's mark and its look at every group.
        for weight in self._weights:
            weight.grad = None

    def abandon(self) -> None:
        """The step under way ends before the vote was heard: what was found out about its gradients is void."""
        self.forget()
        self._passed = None
        if self._loss_scale is not None:
            self._loss_scale.abandon()

    def state_dict(self) -> dict[str, Any]:
        """State of the optimizer, and the peak rates."""
        with uncompiled():
            return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a stored state; the peak rates and the kernel are those of this run's flags."""
        own = [{key: group[key] for key in _OF_FLAGS if key in group} for group in self.optimizer.param_groups]
        stored = state["param_groups"]
        if len(stored) == len(own):
            # Before it is loaded: where torch keeps the counters of steps depends on the kernel.
            state = {**state, "param_groups": [group | mine for group, mine in zip(stored, own, strict=True)]}
        with uncompiled():
            self.optimizer.load_state_dict(state)

    def loss_scale_state(self) -> dict[str, Any] | None:
        """State of the loss scale; None without fp16."""
        return None if self._loss_scale is None else self._loss_scale.state_dict()

    def load_loss_scale(self, state: dict[str, Any] | None) -> None:
        """Go on from a stored loss scale; a run that had none before begins anew."""
        if self._loss_scale is not None:
            self._loss_scale.load_state_dict(state)


def _fuses_pieces(config: Config) -> bool:
    """Whether torch's fused kernel takes pieces of weights; that of SGD does not know them."""
    return config.optimizer is OptimizerName.ADAMW


def _optimizer(model: nn.Module, config: Config, *, lacks_fused: bool) -> Optimizer:
    if lacks_fused and config.optimizer_kernel is KernelName.FUSED:
        raise BadConfig(
            f"--optimizer-kernel is fused, but that of {config.optimizer} knows no weights in pieces (--parallel).",
            hint="Give --optimizer-kernel auto.",
        )
    if config.optimizer_kernel is KernelName.AUTO and _lie_apart(model):
        # Some weights are cut over other ranks than others, or not at all, and no kernel takes both at once.
        return _with_kernel(_KERNEL[KernelName.LOOP], model, config)
    if lacks_fused and config.optimizer_kernel is KernelName.AUTO:
        return _with_kernel(_KERNEL[KernelName.FOREACH], model, config)
    if config.optimizer_kernel is KernelName.AUTO:
        # The fused kernel goes over each weight once, where torch's own choice on the CPU makes ten calls for each.
        try:
            return _with_kernel(_KERNEL[KernelName.FUSED], model, config)
        except RuntimeError:
            return _with_kernel(_TORCHS_CHOICE, model, config)
    try:
        return _with_kernel(_KERNEL[config.optimizer_kernel], model, config)
    except RuntimeError as err:
        raise BadConfig(
            f"--optimizer-kernel is {config.optimizer_kernel}, but {config.optimizer} cannot: {str(err).rstrip('.')}.",
            hint="Give --optimizer-kernel auto.",
        ) from None


def _lie_apart(model: nn.Module) -> bool:
    """Whether weights that are here lie over different ranks: those over the same are of one type, and one mesh."""
    here = [weight for weight in model.parameters() if not weight.is_meta]
    return len({(type(weight), getattr(weight, "device_mesh", None)) for weight in here}) > 1


def _with_kernel(kernel: Kernel, model: nn.Module, config: Config) -> Optimizer:
    # Of a pipeline, those of other stages too: they get no gradients, and weights have the same numbers on all ranks.
    weights = list(model.parameters())
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer is OptimizerName.ADAMW:
        return torch.optim.AdamW(weights, lr=rate, weight_decay=decay, **kernel)
    return torch.optim.SGD(weights, lr=rate, momentum=config.momentum, weight_decay=decay, **kernel)


def lr_scale(config: Config) -> float:
    """Factor on the learning rate for the size of the global batch; 1 unless a rule was asked for.

    Linear: P. Goyal et al., "Accurate, Large Minibatch SGD", 2017. Square root: A. Krizhevsky, "One weird trick",
    2014; for adaptive optimizers S. Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient
    Algorithms", NeurIPS 2022.
    """
    if config.lr_scaling is LrScaling.NONE or config.lr_reference_batch is None:
        return 1.0
    ratio = config.global_batch / config.lr_reference_batch
    return ratio if config.lr_scaling is LrScaling.LINEAR else math.sqrt(ratio)


def rate_factor(schedule: ScheduleName, step: int, warmup: int, total: int) -> float:
    """Share of the peak learning rate at a global step, from 0: a linear rise, then a fall or a plateau.

    >>> [rate_factor(ScheduleName.COSINE, step, 2, 10) for step in (0, 1, 2, 6)]
    [0.5, 1.0, 1.0, 0.5]
    >>> [rate_factor(ScheduleName.LINEAR, step, 2, 10) for step in (0, 1, 2, 4, 6)]
    [0.5, 1.0, 1.0, 0.75, 0.5]
    """
    if step < warmup:
        return (step + 1) / warmup
    if schedule is ScheduleName.CONSTANT:
        return 1.0
    done = min((step - warmup) / max(total - warmup, 1), 1.0)
    return 1 - done if schedule is ScheduleName.LINEAR else 0.5 * (1 + math.cos(math.pi * done))
