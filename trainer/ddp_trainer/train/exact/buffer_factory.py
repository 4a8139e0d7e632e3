"""Choice of how running statistics are synchronized."""

from __future__ import annotations

from torch import nn

from ddp_trainer.train.config.config import Config
from ddp_trainer.train.config.option_values import Level
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.exact.buffer_sync import FirstRanksBuffers, SharedBuffers
from ddp_trainer.train.exact.exact_buffers import TreeBuffers


def make_buffers(model: nn.Module, group: Group, batch_slices: int, config: Config) -> SharedBuffers:
    """Return the synchronization of the model's buffers that the options select."""
    if config.level is Level.EXACT:
        return TreeBuffers(model, group, batch_slices)
    return (FirstRanksBuffers if config.broadcast_buffers else SharedBuffers)(model, group)
