"""Apply the options for precision, memory layout, compiler and activation checkpointing to a model and its losses.

The entry point is :func:`prepare`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ddp_trainer.common.constants import Env
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Level, Recompute
from ddp_trainer.train.data.batch_reader import map_parts
from ddp_trainer.train.data.task import Batch
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.transforms.blocks import named_blocks, require_blocks
from ddp_trainer.train.transforms.precision import precision_context, require_precision
from ddp_trainer.train.utils.errors import BadConfig

Losses = Callable[[nn.Module, Batch], Tensor]
Alarm = Callable[[str], None]
_Result = TypeVar("_Result")


def prepare(model: nn.Module, losses: Losses, config: Config, group: Group, alarm: Alarm) -> Losses:
    """Transform a model in place and return its losses function with all options applied.

    Args:
        model: The model, already on its device.
        losses: Losses of the samples of a batch.
        config: Options of the run.
        group: The ranks.
        alarm: Receives the message if the compiler falls back.

    Raises:
        BadConfig: The device or the model does not support an option.
    """
    require_precision(config.precision, group.device)
    if config.deterministic or config.level is Level.EXACT:
        be_deterministic()
    if config.sync_batchnorm:
        convert_sync_batchnorm(model, config, group)
    if config.channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload] # torch's stub lacks this form
    if config.compile and group.device.type == "cpu":
        _prepare_compile_cache()
    if config.activation_checkpointing or config.compile:
        losses = _of_blocks(model, losses, config, alarm)
    return in_training_format(losses, config, group.device)


def in_training_format(
    function: Callable[[nn.Module, Batch], _Result], config: Config, device: torch.device
) -> Callable[[nn.Module, Batch], _Result]:
    """Return a function of model and batch that computes in the precision and memory layout of training."""
    context, is_channels_last = precision_context(config.precision, device), config.channels_last
    if context is nullcontext and not is_channels_last:
        return function

    def compute(model: nn.Module, batch: Batch) -> _Result:
        with context():
            return function(model, channels_last(batch) if is_channels_last else batch)

    return compute


def _of_blocks(model: nn.Module, losses: Losses, config: Config, alarm: Alarm) -> Losses:
    """Apply activation checkpointing and compilation."""
    by_block = config.compile and (config.compile_blocks or config.is_model_sharded)
    found: Sequence[nn.Module] = ()
    if by_block or config.activation_checkpointing:
        found = _blocks(model, config, "--activation-checkpointing" if config.activation_checkpointing else "--compile")
    # ``cheap`` chooses by operation what a block keeps. Inside compiled code only the compiler sees the operations, so
    # it compiles around the checkpointed block. Compiling around whole recomputed blocks fails in torch 2.13 if their
    # weights are sharded.
    if config.recompute is not Recompute.CHEAP:
        losses = _compiled(model, losses, config, alarm, found if by_block else None)
    if config.activation_checkpointing:
        from ddp_trainer.train.transforms.activation_checkpointing import checkpoint_activations  # noqa: PLC0415 - on request

        checkpoint_activations(model, config.recompute, found=found, compiled=config.compile)
    if config.recompute is Recompute.CHEAP:
        losses = _compiled(model, losses, config, alarm, found if by_block else None)
    return losses


def _compiled(
    model: nn.Module, losses: Losses, config: Config, alarm: Alarm, found: Sequence[nn.Module] | None
) -> Losses:
    """Compile the found blocks, or the model if ``found`` is None; do nothing without ``--compile``."""
    if not config.compile:
        return losses
    from ddp_trainer.train.transforms.compilation import CompiledLosses, compile_blocks  # noqa: PLC0415 - imports the compiler

    fallback = alarm if config.compile_fallback else None
    if found is None:
        return CompiledLosses(model, losses, backend=config.compile_backend, alarm=fallback)
    compile_blocks(found, backend=config.compile_backend, alarm=fallback)
    return losses


def _prepare_compile_cache() -> None:
    directory = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
    if directory and Env.COMPILE_CACHE in os.environ:
        from ddp_trainer.train.transforms.compilation import reuse_isa_probes  # noqa: PLC0415 - imports the compiler

        reuse_isa_probes(Path(directory))


def _blocks(model: nn.Module, config: Config, flag: str) -> Sequence[nn.Module]:
    if config.fsdp_blocks:
        return named_blocks(model, config.fsdp_blocks)
    return require_blocks(model, flag)


def channels_last(batch: Batch) -> Batch:
    """Return the batch with every four-dimensional tensor in NHWC memory format; shapes do not change."""
    return map_parts(_channels_last, batch)


def _channels_last(part: Any) -> Any:
    is_image = isinstance(part, Tensor) and part.dim() == 4
    return part.contiguous(memory_format=torch.channels_last) if is_image else part


def convert_sync_batchnorm(model: nn.Module, config: Config, group: Group) -> None:
    """Replace BatchNorm by torch's SyncBatchNorm, which normalizes over the passes of all ranks; no-op on one rank.

    Without it, each batch slice is normalized separately, which needs no other rank, and
    :mod:`ddp_trainer.train.exact.buffer_sync` makes the *running* statistics independent of the ranks. SyncBatchNorm
    normalizes a sample with the samples computed at the same time. The result therefore depends on the number of ranks,
    and every rank must make the same number of passes.

    Args:
        model: Model, changed in place.
        config: Options of the run.
        group: Process group.

    Raises:
        BadConfig: The device is the CPU, which SyncBatchNorm does not support, or ranks make different numbers of
            passes.
    """
    if group.device.type != "cuda":
        raise BadConfig(
            "--sync-batchnorm needs a GPU per rank: torch's SyncBatchNorm does not run on the CPU.",
            hint="Leave it out: each batch slice is normalized by itself, and running statistics are shared.",
        )
    if (
        config.batch_slices is None
        or config.batch_slices % group.world_size
        or config.global_batch % config.batch_slices
    ):
        raise BadConfig(
            f"--sync-batchnorm needs ranks that make the same passes, and --batch-slices is {config.batch_slices} for "
            f"{group.world_size} ranks and a global batch of {config.global_batch}.",
            hint=f"Give --batch-slices a multiple of {group.world_size} that divides --global-batch.",
        )
    if group.world_size > 1:
        _convert(model)


def _convert(module: nn.Module) -> None:
    for name, child in module.named_children():
        converted = nn.SyncBatchNorm.convert_sync_batchnorm(child)  # type: ignore[no-untyped-call] # torch's
        setattr(module, name, converted)


def be_deterministic() -> None:
    """Allow only deterministic algorithms; call it before the first work on a GPU."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    try:
        # The public function also configures the compiler, which it has to import: 6 s.
        torch._C._set_deterministic_algorithms(True)  # noqa: SLF001 - the rest of the public function
    except (AttributeError, TypeError):
        torch.use_deterministic_algorithms(mode=True)
