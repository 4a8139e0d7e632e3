"""Activation checkpointing: drop activations inside a block and recompute them in the backward pass.

:func:`checkpoint_activations` changes the blocks that :mod:`ddp_trainer.train.transforms.blocks` finds. Names of
weights do not change, so checkpoints load with and without it. Recomputing every second block costs half the time and
saves half the memory. ``cheap`` keeps the results that take long to compute, which saves most of the time for a part of
the memory (V. Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models", 2022).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ddp_trainer.train.config.option_values import Recompute
from ddp_trainer.train.transforms.blocks import require_blocks
from ddp_trainer.train.utils.dynamo_stub import without_compiler

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
"""Names of torch operations; each version of torch has some of them."""

COMPUTES_AGAIN: Final = "computes_again"
"""Attribute of every block found, and of no other module: True if the block recomputes activations."""


def checkpoint_activations(
    model: nn.Module,
    recompute: Recompute | int = Recompute.ALL,
    *,
    found: Sequence[nn.Module] | None = None,
    compiled: bool = False,
) -> int:
    """Make blocks of the model recompute their activations and return the number of these blocks.

    Args:
        model: Changed in place.
        recompute: What each block recomputes, or ``N`` to recompute every ``N``-th block.
        found: Blocks of the model in order; None to search for them.
        compiled: True if the model is compiled, so that the checkpoint function may use the compiler.

    Raises:
        BadConfig: The model has no blocks.
    """
    found = require_blocks(model, "--activation-checkpointing") if found is None else found
    chosen = found if isinstance(recompute, Recompute) else found[recompute - 1 :: recompute]
    for block in found:
        vars(block)[COMPUTES_AGAIN] = any(block is other for other in chosen)
    for block in chosen:
        block.forward = _checkpointed(block.forward, cheap=recompute is Recompute.CHEAP, compiled=compiled)
    return len(chosen)


def _checkpointed(forward: Callable[..., Any], *, cheap: bool, compiled: bool) -> Callable[..., Any]:
    extra: dict[str, Any] = (
        {"context_fn": partial(create_selective_checkpoint_contexts, _checkpoint_policy)} if cheap else {}
    )

    def run(*args: Any, **options: Any) -> Any:
        return checkpoint(forward, *args, use_reentrant=False, **extra, **options)

    return run if compiled else without_compiler(run)


def _checkpoint_policy(_: Any, operation: Any, *args: Any, **options: Any) -> CheckpointPolicy:
    # Dropout must not be kept: its numbers would not be drawn again, and later draws would differ in the recomputation.
    is_saved = operation in _compute_intensive_ops() and not _has_dropout(operation, args, options)
    return CheckpointPolicy.MUST_SAVE if is_saved else CheckpointPolicy.PREFER_RECOMPUTE


def _has_dropout(operation: Any, args: Sequence[Any], options: Mapping[str, Any]) -> bool:
    names = [argument.name for argument in operation._schema.arguments]  # noqa: SLF001 - torch has no public accessor
    if "dropout_p" not in names:
        return False
    at = names.index("dropout_p")
    return bool(args[at] if at < len(args) else options.get("dropout_p", 0.0))


@lru_cache(maxsize=1)
def _compute_intensive_ops() -> list[Any]:
    """Return the costly operations that this version of torch has."""
    packets = [getattr(torch.ops.aten, name) for name in _COSTLY if hasattr(torch.ops.aten, name)]
    return [packet.default for packet in packets]
