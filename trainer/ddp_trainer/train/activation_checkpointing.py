"""Less memory for more computing: activations inside a block are dropped, and computed again in the backward pass.

Blocks are the entries of every ``nn.ModuleList``, the layers of a transformer; where a model has none, the entries of
its outermost ``nn.Sequential`` that have weights. Names of weights do not change, so checkpoints fit with and without.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint

from ddp_trainer.train.errors import BadConfig
from ddp_trainer.train.lazy_dynamo import uncompiled


def checkpoint_activations(model: nn.Module) -> int:
    """Let every block of the model compute its activations again; how many blocks there are.

    Raises:
        BadConfig: the model has no blocks.
    """
    found = blocks(model)
    if not found:
        raise BadConfig(
            f"--activation-checkpointing finds no blocks in {type(model).__name__}, which has neither an nn.ModuleList "
            "nor an nn.Sequential.",
            hint="Put the layers into one, or leave the flag out.",
        )
    for block in found:
        block.forward = _again(block.forward)
    return len(found)


def blocks(model: nn.Module) -> list[nn.Module]:
    """The blocks, none of which lies in another."""
    for kind in (nn.ModuleList, nn.Sequential):
        outermost = [module for name, module in model.named_modules() if isinstance(module, kind)]
        entries = [entry for module in outermost for entry in module if _has_weights(entry)]
        inner = {id(each) for entry in entries for each in entry.modules() if each is not entry}
        if entries:
            return [entry for entry in entries if id(entry) not in inner]
    return []


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


def _again(forward: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any, **options: Any) -> Any:
        with uncompiled():
            return checkpoint(forward, *args, use_reentrant=False, **options)

    return run
