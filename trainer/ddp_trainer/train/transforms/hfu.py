"""How much of a model's work is done twice, since activations were dropped: what HFU counts and MFU does not."""

from __future__ import annotations

from torch import nn

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.options import Recompute
from ddp_trainer.train.models.registry import flops


def recomputed_ratio(model: nn.Module, config: Config) -> float | None:
    """Operations done a second time, over those of the model; None where the model does not say.

    A model tells them, as :class:`ddp_trainer.train.models.gpt.Gpt` does: ``recomputed_flops_per_sample`` those of the
    forward pass through all its blocks, ``cheaply_recomputed_flops_per_sample`` what of them ``--recompute cheap``
    does not keep. Of every N-th block it is their share of all blocks, by weights.
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
    """Weights of the blocks that compute again, over those of all; of the whole model, whatever this rank has of it."""
    from ddp_trainer.train.transforms.activation_checkpointing import COMPUTES_AGAIN  # noqa: PLC0415 - on request

    sizes = {True: 0, False: 0}
    for block in model.modules():
        if (again := vars(block).get(COMPUTES_AGAIN)) is not None:
            sizes[again] += sum(weight.numel() for weight in block.parameters())
    every = sum(sizes.values())
    return sizes[True] / every if every else 0.0
