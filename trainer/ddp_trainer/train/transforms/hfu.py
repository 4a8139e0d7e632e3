"""Operations and tokens that a model counts, and the share that activation checkpointing repeats for HFU."""

from __future__ import annotations

from torch import nn

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Recompute


def flops(model: nn.Module) -> int | None:
    """Return the floating-point operations to learn from one sample, forward and backward.

    Returns:
        None if the model has no ``flops_per_sample()``.
    """
    count = getattr(model, "flops_per_sample", None)
    return int(count()) if callable(count) else None


def tokens(model: nn.Module) -> int | None:
    """Return the number of tokens of one sample.

    Returns:
        None if the model has no ``tokens_per_sample()``, as a model of images.
    """
    count = getattr(model, "tokens_per_sample", None)
    return int(count()) if callable(count) else None


def recompute_ratio(model: nn.Module, config: Config) -> float | None:
    """Return the recomputed operations divided by the operations of the model; None if the model does not count them.

    The model counts them in two methods.
    ``recomputed_flops_per_sample`` covers the forward pass through all blocks. ``cheaply_recomputed_flops_per_sample``
    covers the part that ``--recompute cheap`` repeats. If only every N-th block recomputes, the ratio is scaled by
    their share of all blocks, by weights.
    """
    needed = flops(model)
    if not needed:
        return None
    if not config.activation_checkpointing:
        return 0.0
    is_cheap = config.recompute is Recompute.CHEAP
    count = getattr(model, f"{'cheaply_' if is_cheap else ''}recomputed_flops_per_sample", None)
    if not callable(count):
        return None
    return float(count()) / needed * _share_of_blocks(model)


def _share_of_blocks(model: nn.Module) -> float:
    """Return the weights of the recomputing blocks divided by those of all blocks, for the complete model."""
    from ddp_trainer.train.transforms.activation_checkpointing import COMPUTES_AGAIN  # noqa: PLC0415 - on request

    sizes = {True: 0, False: 0}
    for block in model.modules():
        if (again := vars(block).get(COMPUTES_AGAIN)) is not None:
            sizes[again] += sum(weight.numel() for weight in block.parameters())
    every = sum(sizes.values())
    return sizes[True] / every if every else 0.0
