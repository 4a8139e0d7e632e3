"""GPT of any size: a decoder-only pre-norm transformer as GPT-2 (Radford et al., 2019), without biases.

The token embedding is also the output layer. Attention is torch's ``scaled_dot_product_attention``, causal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.common.trainer_options import of_slices, of_stages
from ddp_trainer.train.data.batch_plan import cut
from ddp_trainer.train.utils.errors import BadConfig
from ddp_workloads.model_registry import at_least, share

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

_STD = 0.02
_TIME: Final = 1
"""Dimension of the tokens in ``(n, time, width)``."""


class Gpt(nn.Module):
    """GPT from tokens to logits of the next tokens.

    The input is int64 ``(n, time)`` with ``time ≤ window``. The output is ``(n, time, vocabulary)``.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        window: int,
        layers: int = 4,
        heads: int = 4,
        width: int = 128,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        at_least(1, layers=layers, heads=heads, width=width)
        share(dropout=dropout)
        if width % heads:
            raise BadConfig(f"The model's width {width} cannot be divided among {heads} heads.", hint=_EVEN)
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(window, width)
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)
        self.head = Head()
        self.heads = heads
        self._layers, self._width, self._window = layers, width, window
        for name, weight in self.named_parameters():
            self.init_weight(name, weight)

    def init_weight(self, name: str, weight: Tensor) -> None:
        """Fill a weight with its initial values, in place.

        Args:
            name: Name of the weight in the model.
            weight: Float tensor with the shape of the whole weight.
        """
        if weight.dim() > 1:
            # Layers that add to the residual stream start smaller, so that it does not grow with depth (GPT-2).
            depth = math.sqrt(2 * self._layers) if name.endswith("out.weight") else 1.0
            nn.init.normal_(weight, std=_STD / depth)
        else:
            nn.init.ones_(weight)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits of the token after each token.

        Args:
            tokens: Tokens, int64 ``(n, time)`` with ``time ≤ window``.

        Returns:
            Float logits, ``(n, time, vocabulary)``.
        """
        times = torch.arange(tokens.shape[1], device=tokens.device)
        stream = self.dropout(self.tokens(tokens) + self.positions(times))
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream), self.tokens.weight)  # type: ignore[no-any-return] # a Module's call

    @property
    def architecture(self) -> Mapping[str, object]:
        """Properties that determine the output but not the shapes of the weights."""
        return {"heads": self.heads}

    @property
    def has_attention_dropout(self) -> bool:
        """True if attention has dropout."""
        return any(isinstance(module, ScaledDotProductAttention) and module.share > 0 for module in self.modules())

    def tp_plan(self, tp: int) -> Mapping[str, ParallelStyle]:
        """Return the parallel style of each module, by name; ``*`` stands for any block.

        The division follows "Megatron-LM" (Shoeybi et al., 2019), with the sequence parallelism of Korthikanti et al.
        (2022). In each block, layers that widen are divided by rows of their output: each rank has consecutive heads or
        hidden units. Layers that narrow are divided by columns of their input, so a block exchanges activations twice.
        Between them, operations act on single tokens, and each rank has consecutive tokens. Dropout draws the same as
        in one process. Dropout in attention is the exception: each rank draws for its heads. The rows of the token
        embedding, and therefore the logits, are divided by tokens of the vocabulary.

        Args:
            tp: Number of tensor-parallel ranks.

        Raises:
            BadConfig: Heads or vocabulary cannot be divided evenly among the ranks.
        """
        from torch.distributed.tensor import Replicate, Shard, parallel  # noqa: PLC0415 - a second of imports; on request

        from ddp_trainer.train.mesh.device_mesh import PerRankRng  # noqa: PLC0415 - as above

        for misfit in of_slices(tp, heads=self.heads, vocabulary=self.tokens.num_embeddings):
            raise BadConfig(misfit.message, hint=misfit.help)
        by_time = Shard(_TIME)
        return {
            "tokens": parallel.RowwiseParallel(
                input_layouts=Replicate(), output_layouts=by_time, use_local_output=False
            ),
            # ``(time, width)``, the same for all samples.
            "positions": parallel.RowwiseParallel(
                input_layouts=Replicate(), output_layouts=Shard(0), use_local_output=False
            ),
            "blocks.*.attention_norm": parallel.SequenceParallel(),
            "blocks.*.attention": parallel.PrepareModuleInput(input_layouts=by_time, desired_input_layouts=Replicate()),
            "blocks.*.attention.query": parallel.ColwiseParallel(),
            "blocks.*.attention.key": parallel.ColwiseParallel(),
            "blocks.*.attention.value": parallel.ColwiseParallel(),
            **({"blocks.*.attention.attend": PerRankRng()} if self.has_attention_dropout else {}),
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

    def pipeline_stage(self, index: int, count: int) -> nn.Module:
        """Return stage ``index`` of ``count`` of this model; see :class:`GptStage`."""
        return GptStage(self, index, count)

    def parameter_count(self) -> int:
        """Return the number of weights. The embedding that is also the output layer counts once."""
        return sum(weight.numel() for weight in self.parameters())

    def tokens_per_sample(self) -> int:
        """Return the number of tokens of a window."""
        return self._window

    def flops_per_sample(self) -> int:
        """Return the floating-point operations to learn from one window, forward and backward.

        They are ``6·N·tokens`` for the weights that are multiplied with (all but the positions), and
        ``12·layers·width·window`` per token for attention.

        Source: "PaLM" (Chowdhery et al., 2022), appendix B.
        """
        multiplied = self.parameter_count() - self.positions.weight.numel()
        return self._window * (6 * multiplied + 12 * self._layers * self._width * self._window)

    def recomputed_flops_per_sample(self) -> int:
        """Return the floating-point operations per window that blocks repeat under activation checkpointing.

        They are those of the forward pass without the last layer, whose output the backward pass does not need.
        """
        again = sum(
            weight.numel() for name, weight in self.blocks.named_parameters() if not name.endswith("mlp.out.weight")
        )
        return self._window * (2 * again + 4 * self._layers * self._width * self._window)

    def cheaply_recomputed_flops_per_sample(self) -> int:
        """Return the floating-point operations per window that ``--recompute cheap`` repeats.

        Results of matrix products, and of attention without dropout, are kept. The repeated operations are two per
        token and weight of norms, and attention with dropout, which is one kernel on a GPU.
        """
        norms = sum(weight.numel() for name, weight in self.blocks.named_parameters() if "norm" in name)
        attention = 4 * self._layers * self._width * self._window if self.has_attention_dropout else 0
        return self._window * (2 * norms + attention)


_EVEN = "Give a width that is a multiple of heads."


class GptStage(nn.Module):
    """Pipeline stage of a GPT.

    The input is the residual stream of the previous stage, or tokens in the first stage. The output is the residual
    stream, or logits in the last stage.
    """

    def __init__(self, model: Gpt, index: int, count: int) -> None:
        """Make stage ``index`` of ``count``, which shares its weights with the model.

        Raises:
            BadConfig: A stage would have no layer.
        """
        super().__init__()
        layers = len(model.blocks)
        for misfit in of_stages(count, layers=layers):
            raise BadConfig(misfit.message, hint=misfit.help)
        own = range(layers)[cut(layers, count, index)]
        self._is_first, self._is_last = index == 0, index == count - 1
        self.blocks = nn.ModuleDict({str(layer): model.blocks[layer] for layer in own})
        if self._is_first or self._is_last:
            self.tokens = model.tokens
        if self._is_first:
            self.positions, self.dropout = model.positions, model.dropout
        if self._is_last:
            self.norm, self.head = model.norm, model.head

    def forward(self, stream: Tensor) -> Tensor:
        """Compute the part of this stage of :meth:`ddp_workloads.gpt.Gpt.forward`.

        Args:
            stream: Tokens, int64 ``(n, time)``, in the first stage; else the residual stream, float ``(n, time,
                width)``.

        Returns:
            Float logits, ``(n, time, vocabulary)``, in the last stage; else the residual stream.
        """
        if self._is_first:
            times = torch.arange(stream.shape[1], device=stream.device)
            stream = self.dropout(self.tokens(stream) + self.positions(times))
        for block in self.blocks.values():
            stream = cast("Block", block)(stream)
        return self.head(self.norm(stream), self.tokens.weight) if self._is_last else stream


class Block(nn.Module):
    """Attention and a perceptron, each with a norm on its input and a residual connection."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp = FeedForward(width, dropout)

    def forward(self, stream: Tensor) -> Tensor:
        """Return the residual stream after this block, ``(n, time, width)``.

        Args:
            stream: Residual stream, float ``(n, time, width)``.
        """
        stream = stream + self.attention(self.attention_norm(stream))
        return stream + self.mlp(self.mlp_norm(stream))  # type: ignore[no-any-return] # a Module's call


class Attention(nn.Module):
    """Causal self-attention with several heads."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self._head_width = width // heads
        # Separate layers: if rows are divided among ranks, each rank has query, key and value of the same heads.
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.attend = ScaledDotProductAttention(dropout)
        self.out = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Tensor) -> Tensor:
        """Return the output of attention, ``(n, time, width)``.

        Args:
            stream: Normalized residual stream, float ``(n, time, width)``.
        """
        query, key, value = (self._by_head(layer(stream)) for layer in (self.query, self.key, self.value))
        found = self.attend(query, key, value)
        return self.dropout(self.out(found.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return] # as above

    def _by_head(self, projected: Tensor) -> Tensor:
        """Return ``(n, heads, time, width of a head)`` for the heads on this rank."""
        n, time, width = projected.shape
        return projected.view(n, time, width // self._head_width, self._head_width).transpose(1, 2)


class ScaledDotProductAttention(nn.Module):
    """Attention of each head separately, for all heads or those of one rank."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.share = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Return the attention output. All inputs and the output are ``(n, heads, time, width of a head)``.

        Args:
            query: Queries, float ``(n, heads, time, width of a head)``.
            key: Keys, float ``(n, heads, time, width of a head)``.
            value: Values, float ``(n, heads, time, width of a head)``.
        """
        dropout = self.share if self.training else 0.0
        return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)


class FeedForward(nn.Module):
    """Perceptron with one hidden layer of four times the width."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, 4 * width, bias=False)
        self.out = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Tensor) -> Tensor:
        """Return the output of the perceptron, ``(n, time, width)``.

        Args:
            stream: Normalized residual stream, float ``(n, time, width)``.
        """
        return self.dropout(self.out(functional.gelu(self.hidden(stream))))  # type: ignore[no-any-return] # as above


class Head(nn.Module):
    """Output layer, with the weights of the token embedding."""

    def forward(self, stream: Tensor, weight: Tensor) -> Tensor:
        """Return logits, ``(n, time, vocabulary)``.

        Args:
            stream: Normalized residual stream, float ``(n, time, width)``.
            weight: Token embedding, float ``(vocabulary, width)``.
        """
        return functional.linear(stream, weight)
