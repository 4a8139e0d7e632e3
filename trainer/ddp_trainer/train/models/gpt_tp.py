"""Tensor parallelism of the GPT: the part of each weight that each rank holds.

The division follows "Megatron-LM" (Shoeybi et al., 2019), with the sequence parallelism of Korthikanti et al. (2022).
In each block, layers that widen are divided by rows of their output: each rank has consecutive heads or hidden units.
Layers that narrow are divided by columns of their input, so a block exchanges activations twice. Between them,
operations act on single tokens, and each rank has consecutive tokens. Dropout draws the same as in one process. Dropout
in attention is the exception: each rank draws for its heads. The rows of the token embedding, and therefore the logits,
are divided by tokens of the vocabulary. The main entry point is :func:`tp_plan`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch.distributed.tensor import Replicate, Shard, parallel

from ddp_trainer.common.trainer_options import of_slices
from ddp_trainer.train.mesh.device_mesh import PerRankRng
from ddp_trainer.train.models.gpt_layers import GptParts
from ddp_trainer.train.utils.errors import BadConfig

_TIME: Final = 1
"""Dimension of the tokens in ``(n, time, width)``."""


def tp_plan(model: GptParts, tp: int) -> Mapping[str, parallel.ParallelStyle]:
    """Return the parallel style of each module, by name; ``*`` stands for any block.

    Args:
        model: GPT to divide.
        tp: Number of tensor-parallel ranks.

    Raises:
        BadConfig: Heads or vocabulary cannot be divided evenly among the ranks.
    """
    for misfit in of_slices(tp, heads=model.heads, vocabulary=model.tokens.num_embeddings):
        raise BadConfig(misfit.message, hint=misfit.help)
    by_time = Shard(_TIME)
    return {
        "tokens": parallel.RowwiseParallel(input_layouts=Replicate(), output_layouts=by_time, use_local_output=False),
        # ``(time, width)``, the same for all samples.
        "positions": parallel.RowwiseParallel(
            input_layouts=Replicate(), output_layouts=Shard(0), use_local_output=False
        ),
        "blocks.*.attention_norm": parallel.SequenceParallel(),
        "blocks.*.attention": parallel.PrepareModuleInput(input_layouts=by_time, desired_input_layouts=Replicate()),
        "blocks.*.attention.query": parallel.ColwiseParallel(),
        "blocks.*.attention.key": parallel.ColwiseParallel(),
        "blocks.*.attention.value": parallel.ColwiseParallel(),
        **({"blocks.*.attention.attend": PerRankRng()} if model.has_attention_dropout else {}),
        "blocks.*.attention.out": parallel.RowwiseParallel(output_layouts=by_time, use_local_output=False),
        "blocks.*.mlp_norm": parallel.SequenceParallel(),
        "blocks.*.mlp": parallel.PrepareModuleInput(input_layouts=by_time, desired_input_layouts=Replicate()),
        "blocks.*.mlp.hidden": parallel.ColwiseParallel(),
        "blocks.*.mlp.out": parallel.RowwiseParallel(output_layouts=by_time, use_local_output=False),
        "norm": parallel.SequenceParallel(),
        "head": parallel.PrepareModuleInput(
            input_layouts=(by_time, None), desired_input_layouts=(Replicate(), None), use_local_output=False
        ),
    }
