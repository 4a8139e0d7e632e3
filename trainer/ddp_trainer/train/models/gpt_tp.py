"""The GPT over the ranks of a tensor-parallel group: who holds which part of which weight.

As "Megatron-LM" (Shoeybi et al., 2019) cuts them, with the sequence parallelism of Korthikanti et al. (2022). Of each
block, the layers that widen are cut by rows of their output, a run of heads or of hidden units to each rank, and those
that narrow by columns of their input, so that a block exchanges activations twice. Between them, where every token is
by itself, each rank has a run of the tokens. Dropout draws what one process would, but of attention, where each rank
draws for its heads. Rows of the token embedding are cut, and with it the logits, by tokens of
the vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
)

from ddp_trainer.common.model_constraints import of_slices
from ddp_trainer.train.mesh.tp_rng import PerRankRng
from ddp_trainer.train.models.gpt_layers import GptParts
from ddp_trainer.train.utils.errors import BadConfig

_TIME: Final = 1
"""Dimension of the tokens in ``(n, time, width)``."""


def tp_plan(model: GptParts, tp: int) -> Mapping[str, ParallelStyle]:
    """Names of modules, with ``*`` for any block, and how each is cut.

    Raises:
        BadConfig: heads or vocabulary cannot be divided among the ranks.
    """
    for misfit in of_slices(tp, heads=model.heads, vocabulary=model.tokens.num_embeddings):
        raise BadConfig(misfit.sentence, hint=misfit.help)
    by_time = Shard(_TIME)
    return {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=by_time, use_local_output=False),
        # ``(time, width)``, the same for all samples.
        "positions": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0), use_local_output=False),
        "blocks.*.attention_norm": SequenceParallel(),
        "blocks.*.attention": PrepareModuleInput(input_layouts=by_time, desired_input_layouts=Replicate()),
        "blocks.*.attention.query": ColwiseParallel(),
        "blocks.*.attention.key": ColwiseParallel(),
        "blocks.*.attention.value": ColwiseParallel(),
        **({"blocks.*.attention.attend": PerRankRng()} if model.drops_attention else {}),
        "blocks.*.attention.out": RowwiseParallel(output_layouts=by_time, use_local_output=False),
        "blocks.*.mlp_norm": SequenceParallel(),
        "blocks.*.mlp": PrepareModuleInput(input_layouts=by_time, desired_input_layouts=Replicate()),
        "blocks.*.mlp.hidden": ColwiseParallel(),
        "blocks.*.mlp.out": RowwiseParallel(output_layouts=by_time, use_local_output=False),
        "norm": SequenceParallel(),
        "head": PrepareModuleInput(
            input_layouts=(by_time, None), desired_input_layouts=(Replicate(), None), use_local_output=False
        ),
    }
