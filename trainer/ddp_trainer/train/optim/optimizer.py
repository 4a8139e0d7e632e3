"""Optimizer with learning rate schedule, gradient clipping and loss scale.

:meth:`OptimizerWrapper.build` creates it from the task or the flags. The learning rate is a function of the global
step, so checkpoints need no scheduler state.

:class:`LossScale` scales the loss up and the gradients down again with fp16, where gradients below 6e-8 underflow.
torch's GradScaler holds the scale. The vote of all ranks decides to skip a step, so that all ranks skip it. The state
is part of the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final, TypedDict

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ddp_trainer.common.trainer_options import OptimizerName
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import KernelName, LrScaling, ScheduleName
from ddp_trainer.train.data.task import SupportsOptimizer, Task
from ddp_trainer.train.utils.dynamo_stub import uncompiled
from ddp_trainer.train.utils.errors import BadConfig
from ddp_trainer.train.utils.host_memory import copy_all

if TYPE_CHECKING:
    from ddp_trainer.train.mesh.sharded_state import ShardedState


class LossScale:
    """Scale that grows while gradients stay finite, and is halved if they do not."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._scaler = self._build_scaler(None)
        self._parts: list[Any] = []
        self._probe = torch.zeros((), device=device)
        self._of_probe = _part([self._probe])

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
            self._probe.grad = torch.zeros_like(self._probe)
            self._scaler.unscale_(self._of_probe)

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


PEAK: Final = "peak_lr"
"""Option of a parameter group: its learning rate at the peak of the schedule."""

_OF_FLAGS: Final = (PEAK, "foreach", "fused")
"""Options of a parameter group that come from this run's flags, not from a checkpoint."""


class Kernel(TypedDict):
    """Arguments of torch's optimizers that select the implementation."""

    foreach: bool | None
    fused: bool | None


_KERNEL: Final[Mapping[KernelName, Kernel]] = {
    KernelName.LOOP: {"foreach": False, "fused": False},
    KernelName.FOREACH: {"foreach": True, "fused": False},
    KernelName.FUSED: {"foreach": False, "fused": True},
}
_TORCHS_CHOICE: Final[Kernel] = {"foreach": None, "fused": None}


class OptimizerWrapper:
    """Optimizer whose learning rate follows the global step."""

    def __init__(
        self,
        optimizer: Optimizer,
        config: Config,
        total_steps: int,
        loss_scale: LossScale | None = None,
        sharded: ShardedState | None = None,
    ) -> None:
        """Wrap an optimizer.

        Args:
            optimizer: The optimizer; its learning rates are the peak rates before scaling.
            config: Options of the run.
            total_steps: Number of global steps of the run.
            loss_scale: Loss scale for fp16; None in every other precision.
            sharded: Sharding of the model, if no rank holds all of it.
        """
        self.optimizer = optimizer
        self._sharded = sharded
        self._schedule = config.schedule
        self._warmup = config.warmup_steps
        self._total = total_steps
        self._clip = config.clip_norm
        self.loss_scale = loss_scale
        """Loss scale for fp16; None in every other precision."""
        self._norm: Tensor | None = None
        self._flaw: Tensor | None = None
        self._passed: Tensor | None = None
        self._copying: Future[None] | None = None
        self._weights = [weight for group in optimizer.param_groups for weight in group["params"]]
        self.learning_rate = 0.0
        """Learning rate of the first parameter group in the last step."""
        scale = lr_scale(config)
        for group in optimizer.param_groups:
            group[PEAK] = group["lr"] * scale

    @classmethod
    def build(
        cls,
        task: Task,
        model: nn.Module,
        config: Config,
        total_steps: int,
        loss_scale: LossScale | None = None,
        sharded: ShardedState | None = None,
    ) -> OptimizerWrapper:
        """Create the task's own optimizer, or the one that the flags name.

        Args:
            task: Task, which may define an optimizer.
            model: Model whose weights are optimized.
            config: Options of the run.
            total_steps: Number of global steps of the run.
            loss_scale: Loss scale for fp16; None in every other precision.
            sharded: Sharding of the model, if no rank holds all of it.

        Raises:
            BadConfig: The optimizer does not support the requested kernel.
        """
        with uncompiled():
            if isinstance(task, SupportsOptimizer):
                optimizer = task.optimizer(model.parameters())
                if sharded is not None:
                    sharded.check_param_order(optimizer, task)
            else:
                # torch's fused kernel of SGD does not accept sharded weights.
                lacks_fused = sharded is not None and config.optimizer is not OptimizerName.ADAMW
                optimizer = _optimizer(model, config, lacks_fused=lacks_fused)
        return cls(optimizer, config, total_steps, loss_scale, sharded)

    @property
    def norm(self) -> float | None:
        """Norm of the complete gradient of the last step, before clipping; None if it was not computed."""
        return None if self._norm is None else float(self._norm)

    def check_grads(self) -> Tensor:
        """Check the gradients of a step before the vote.

        Divides them by the loss scale and computes their norm if required.

        Returns:
            A scalar on the device, 0 if all gradients are finite; see :func:`nonfinite_flag`.
        """
        if self.loss_scale is not None:
            self.loss_scale.down(self.optimizer)
        gradients = [gradient for weight in self._weights if (gradient := weight.grad) is not None]
        norm_of: Callable[[Sequence[Tensor]], Tensor] = nn.utils.get_total_norm
        pieces = gradients
        if self._sharded is not None:
            norm_of, pieces = self._sharded.norm, self._sharded.pieces(gradients)
        self._norm = norm_of(gradients) if self._clip is not None or self.loss_scale is not None else None
        self._flaw = nonfinite_flag(pieces, self._norm, self._passed)
        self._passed = None
        return self._flaw

    def step(self, step: int) -> None:
        """Update the weights with the examined gradients of this global step."""
        self.wait_for_copies()
        self._set_lr(step)
        self.learning_rate = float(self.optimizer.param_groups[0]["lr"])
        if self._clip is not None and self._norm is not None:
            # In a sharded model, some gradients are DTensors and others are not; no kernel accepts both in one call.
            at_once = None if self._sharded is None else False
            nn.utils.clip_grads_with_norm_(self._weights, self._clip, self._norm, foreach=at_once)
        with uncompiled():
            self.optimizer.step()
        # Only finite gradients reach this line, so this flag is 0 and can be reused for the next step.
        self._passed = self._flaw
        if self.loss_scale is not None:
            self.loss_scale.update()

    def _set_lr(self, step: int) -> None:
        factor = rate_factor(self._schedule, step, self._warmup, self._total)
        for group in self.optimizer.param_groups:
            group["lr"] = group[PEAK] * factor

    def zero_grad(self) -> None:
        """Drop all gradients, including those of an uncommitted step."""
        self._norm = None
        # Same effect as the optimizer's zero_grad(), without its profiler mark and its loop over the groups.
        for weight in self._weights:
            weight.grad = None

    def discard_step(self) -> None:
        """Discard gradients and findings of a step that ends before the result of its vote."""
        self.zero_grad()
        self._passed = None
        if self.loss_scale is not None:
            self.loss_scale.discard_step()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer, including the peak learning rates."""
        self.wait_for_copies()
        with uncompiled():
            return self.optimizer.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a stored state, but keep the peak learning rates and the kernel of this run's flags."""
        self.wait_for_copies()
        own = [{key: group[key] for key in _OF_FLAGS if key in group} for group in self.optimizer.param_groups]
        stored = state["param_groups"]
        if len(stored) == len(own):
            # Set the kernel before loading, because the device of torch's step counters depends on it.
            state = {**state, "param_groups": [group | own_group for group, own_group in zip(stored, own, strict=True)]}
        with uncompiled():
            self.optimizer.load_state_dict(state)

    def copy_host_tensors(self, thread: ThreadPoolExecutor | None = None) -> None:
        """Replace the tensors of the state on the CPU by copies, after it was loaded from a mapped file.

        Args:
            thread: Makes the copies beside the first forward and backward passes, and ends. The first update, or any
                other method that uses the state, waits for them. None to make them now.
        """
        states = list(self.optimizer.state.values())
        if thread is None:
            _copy_host_tensors(states)
            return
        self._copying = thread.submit(_copy_host_tensors, states)
        thread.shutdown(wait=False)

    def wait_for_copies(self) -> None:
        """Wait for :meth:`copy_host_tensors` in the background."""
        if self._copying is not None:
            copying, self._copying = self._copying, None
            copying.result()

    def scheduler_state(self) -> dict[str, Any] | None:
        """Return None: the learning rate is a function of the global step."""
        return None

    def load_scheduler(self, state: dict[str, Any] | None) -> None:
        """Do nothing, as there is no scheduler."""

    def loss_scale_state(self) -> dict[str, Any] | None:
        """Return the state of the loss scale; None without fp16."""
        return None if self.loss_scale is None else self.loss_scale.state_dict()

    def load_loss_scale(self, state: dict[str, Any] | None) -> None:
        """Load a stored loss scale; with None, start with the initial one."""
        if self.loss_scale is not None:
            self.loss_scale.load_state_dict(state)


def _copy_host_tensors(states: Sequence[dict[str, Any]]) -> None:
    for state in states:
        state.update({name: _copy(value) for name, value in state.items() if _is_on_host(value)})


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy, made by this thread alone if possible: torch would use all cores, on which other threads train."""
    if type(tensor) is not Tensor or not tensor.is_contiguous():  # a DTensor has no memory of its own
        return tensor.clone()
    copy = torch.empty_like(tensor)
    copy_all([(copy, tensor)], 1)
    return copy


def _is_on_host(value: Any) -> bool:
    return isinstance(value, Tensor) and value.device.type == "cpu"


def nonfinite_flag(gradients: Sequence[Tensor], norm: Tensor | None = None, zero: Tensor | None = None) -> Tensor:
    """Return a scalar on the device: 0 if every gradient is finite, else 1 or NaN.

    The sum over ranks is 0 only if all gradients of all ranks are finite. It is part of the vote, so the host does not
    wait for the device a second time.

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
            norm = nn.utils.get_total_norm(gradients)
    norm = nn.utils.get_total_norm(gradients) if norm is None else norm
    return norm - norm


def _found(gradients: Sequence[Tensor], zero: Tensor | None) -> Tensor:
    device = gradients[0].device
    found = torch.zeros((), device=device) if zero is None else zero
    torch._amp_foreach_non_finite_check_and_unscale_(gradients, found, _one(device))  # type: ignore[arg-type,unused-ignore] # a list
    return found


@lru_cache(maxsize=4)
def _one(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


def _optimizer(model: nn.Module, config: Config, *, lacks_fused: bool) -> Optimizer:
    kernel = config.optimizer_kernel
    if kernel is KernelName.FUSED and lacks_fused:
        raise BadConfig(
            f"--optimizer-kernel is fused, but that of {config.optimizer} knows no weights in pieces (--parallel).",
            hint="Give --optimizer-kernel auto.",
        )
    if kernel is not KernelName.AUTO:
        try:
            return _build_optimizer(_KERNEL[kernel], model, config)
        except RuntimeError as err:
            raise BadConfig(
                f"--optimizer-kernel is {kernel}, but {config.optimizer} cannot: {str(err).rstrip('.')}.",
                hint="Give --optimizer-kernel auto.",
            ) from None
    if _has_mixed_weights(model):
        # Weights have different meshes, or only some are sharded, and no kernel accepts both in one call.
        return _build_optimizer(_KERNEL[KernelName.LOOP], model, config)
    if lacks_fused:
        return _build_optimizer(_KERNEL[KernelName.FOREACH], model, config)
    # The fused kernel passes over each weight once. torch's default on the CPU makes ten calls per weight.
    try:
        return _build_optimizer(_KERNEL[KernelName.FUSED], model, config)
    except RuntimeError:
        return _build_optimizer(_TORCHS_CHOICE, model, config)


def _has_mixed_weights(model: nn.Module) -> bool:
    """Return True if weights on this rank differ in type or device mesh."""
    here = [weight for weight in model.parameters() if not weight.is_meta]
    return len({(type(weight), getattr(weight, "device_mesh", None)) for weight in here}) > 1


def _build_optimizer(kernel: Kernel, model: nn.Module, config: Config) -> Optimizer:
    # Includes the weights of other pipeline stages: they get no gradients, but keep the numbering equal on all ranks.
    weights = list(model.parameters())
    rate, decay = config.learning_rate, config.weight_decay
    if config.optimizer is OptimizerName.ADAMW:
        return torch.optim.AdamW(weights, lr=rate, weight_decay=decay, **kernel)
    return torch.optim.SGD(weights, lr=rate, momentum=config.momentum, weight_decay=decay, **kernel)


def lr_scale(config: Config) -> float:
    """Return the factor on the learning rate for the size of the global batch; 1 without a scaling rule.

    Linear: P. Goyal et al., "Accurate, Large Minibatch SGD", 2017. Square root: A. Krizhevsky, "One weird trick", 2014;
    for adaptive optimizers S. Malladi et al., "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms", NeurIPS
    2022.
    """
    if config.lr_scaling is LrScaling.NONE or config.lr_reference_batch is None:
        return 1.0
    ratio = config.global_batch / config.lr_reference_batch
    return ratio if config.lr_scaling is LrScaling.LINEAR else math.sqrt(ratio)


def rate_factor(schedule: ScheduleName, step: int, warmup: int, total: int) -> float:
    """Return the learning rate at a global step as a share of the peak: a linear rise, then a decay or a plateau.

    Args:
        schedule: Shape after the warmup.
        step: Global step, from 0.
        warmup: Number of warmup steps.
        total: Number of global steps of the run.

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
