"""How much of a model's work is done twice, since activations were dropped: what HFU counts and MFU does not."""

from __future__ import annotations

from typing import Final

from torch import nn

from ddp_trainer.train.config import Config
from ddp_trainer.train.models import flops

_ALL: Final = "all"


def recomputed_ratio(model: nn.Module, config: Config) -> float | None:
    """Operations done a second time, over those of the model; None where the model does not say.

    A model tells them, as :meth:`ddp_trainer.train.models.gpt.Gpt.recomputed_flops_per_sample` does: those of the
    forward pass through its blocks.
    """
    needed = flops(model)
    if not needed:
        return None
    if not config.activation_checkpointing:
        return 0.0
    if getattr(config, "recompute", _ALL) != _ALL:
        return None  # of some blocks, or of some operations: a model tells of all
    count = getattr(model, "recomputed_flops_per_sample", None)
    return float(count()) / needed if callable(count) else None
