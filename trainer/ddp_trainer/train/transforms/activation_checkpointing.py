"""Less memory for more computing: activations inside a block are dropped, and computed again in the backward pass.

Blocks are the entries of every ``nn.ModuleList``, the layers of a transformer; where a model has none, the entries of
its outermost ``nn.Sequential`` that have weights. Names of weights do not change, so checkpoints fit with and without.

What is computed again may be less than a block: every second block costs half the time and saves half the memory, and
``cheap`` keeps what takes long to compute, which is most of the time for a part of the memory (V. Korthikanti et al.,
"Reducing Activation Recomputation in Large Transformer Models", 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ddp_trainer.train.config.options import Recompute
from ddp_trainer.train.transforms.blocks import demand_blocks
from ddp_trainer.train.utils.dynamo_stub import uncompiled

_COSTLY: Final = (
    "mm",
    "addmm",
    "bmm",
    "baddbmm",
    "linear",
    "convolution",
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
"""Of torch's operations, by name: versions differ in those that they have."""

COMPUTES_AGAIN: Final = "computes_again"
"""Attribute of every block that was found, and of no other module: whether it computes activations again."""


def checkpoint_activations(
    model: nn.Module,
    recompute: Recompute | int = Recompute.ALL,
    *,
    found: Sequence[nn.Module] | None = None,
    compiled: bool = False,
) -> int:
    """Let blocks of the model compute activations again; how many do.

    Args:
        model: changed in place.
        recompute: what of each, or of every so many blocks.
        found: its blocks in order, where they are known.
        compiled: the compiler is at work here, and may be asked.

    Raises:
        BadConfig: the model has no blocks.
    """
    found = demand_blocks(model, "--activation-checkpointing") if found is None else found
    chosen = found if isinstance(recompute, Recompute) else found[recompute - 1 :: recompute]
    for block in found:
        vars(block)[COMPUTES_AGAIN] = any(block is each for each in chosen)
    for block in chosen:
        block.forward = _again(block.forward, cheap=recompute is Recompute.CHEAP, compiled=compiled)
    return len(chosen)


def _again(forward: Callable[..., Any], *, cheap: bool, compiled: bool) -> Callable[..., Any]:
    kept: dict[str, Any] = {"context_fn": partial(create_selective_checkpoint_contexts, _kept)} if cheap else {}

    def run(*args: Any, **options: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **kept, **options)

    def run_uncompiled(*args: Any, **options: Any) -> Any:
        with uncompiled():
            return run(*args, **options)

    return run if compiled else run_uncompiled


def _kept(_: Any, operation: Any, *args: Any, **options: Any) -> CheckpointPolicy:
    # What is kept is not drawn again, and whatever draws after it would draw other numbers than before.
    keeps = operation in _costly() and not _drops_out(operation, args, options)
    return CheckpointPolicy.MUST_SAVE if keeps else CheckpointPolicy.PREFER_RECOMPUTE


def _drops_out(operation: Any, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    names = [each.name for each in operation._schema.arguments]  # noqa: SLF001 - an operation has no other
    if "dropout_p" not in names:
        return False
    at = names.index("dropout_p")
    return bool(args[at] if at < len(args) else options.get("dropout_p", 0.0))


@lru_cache(maxsize=1)
def _costly() -> list[Any]:
    """Those that this version of torch has."""
    packets = [getattr(torch.ops.aten, name) for name in _COSTLY if hasattr(torch.ops.aten, name)]
    return [packet.default for packet in packets]
