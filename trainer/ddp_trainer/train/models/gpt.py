"""A GPT of any size: a decoder-only transformer, pre-norm, as GPT-2 (Radford et al., 2019), without biases.

The token embedding is also the output layer. Attention is torch's ``scaled_dot_product_attention``, causal.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.train.models.validation import at_least, share
from ddp_trainer.train.utils.errors import BadConfig

if TYPE_CHECKING:
    from torch.distributed.tensor.parallel import ParallelStyle

_STD = 0.02


class Gpt(nn.Module):
    """Tokens, int64 ``(n, time)`` with ``time ≤ window``, in; logits ``(n, time, vocabulary)`` of the next ones out."""

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
            if weight.dim() > 1:
                # Layers that add to the residual stream begin smaller, so that it does not grow with depth (GPT-2).
                depth = math.sqrt(2 * layers) if name.endswith("out.weight") else 1.0
                nn.init.normal_(weight, std=_STD / depth)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of the token after each."""
        times = torch.arange(tokens.shape[1], device=tokens.device)
        stream = self.dropout(self.tokens(tokens) + self.positions(times))
        for block in self.blocks:
            stream = block(stream)
        return self.head(self.norm(stream), self.tokens.weight)  # type: ignore[no-any-return] # a Module's call

    @property
    def architecture(self) -> Mapping[str, object]:
        """What it computes from weights of the same shapes depends on this, too."""
        return {"heads": self.heads}

    @property
    def drops_attention(self) -> bool:
        """Whether attention drops some of what it found."""
        return any(isinstance(each, Attend) and each.share > 0 for each in self.modules())

    def tp_plan(self, tp: int) -> Mapping[str, ParallelStyle]:
        """How the weights are cut over ``tp`` ranks: see :mod:`ddp_trainer.train.models.gpt_tp`."""
        from ddp_trainer.train.models.gpt_tp import tp_plan  # noqa: PLC0415 - few runs need it

        return tp_plan(self, tp)

    def pipeline_stage(self, index: int, count: int) -> nn.Module:
        """Stage ``index`` of ``count`` of this model: see :mod:`ddp_trainer.train.models.gpt_pp`."""
        from ddp_trainer.train.models.gpt_pp import GptStage  # noqa: PLC0415 - few runs need it

        return GptStage(self, index, count)

    def parameter_count(self) -> int:
        """All weights; the embedding that is also the output layer counts once."""
        return sum(weight.numel() for weight in self.parameters())

    def tokens_per_sample(self) -> int:
        """Those of a window."""
        return self._window

    def flops_per_sample(self) -> int:
        """Floating-point operations to learn from one window, forward and backward.

        ``6·N·tokens`` for the weights that are multiplied with (all but the positions) and ``12·layers·width·window``
        per token for attention: "PaLM" (Chowdhery et al., 2022), appendix B.
        """
        multiplied = self.parameter_count() - self.positions.weight.numel()
        return self._window * (6 * multiplied + 12 * self._layers * self._width * self._window)

    def recomputed_flops_per_sample(self) -> int:
        """Those that blocks do once more where their activations are dropped: their forward pass but for the last
        layer, whose output nothing in the backward pass needs.
        """
        again = sum(
            weight.numel() for name, weight in self.blocks.named_parameters() if not name.endswith("mlp.out.weight")
        )
        return self._window * (2 * again + 4 * self._layers * self._width * self._window)

    def cheaply_recomputed_flops_per_sample(self) -> int:
        """Those of them that are no matrix products and not kept: two per weight of norms, and attention that draws,
        which on a GPU is one kernel.
        """
        norms = sum(weight.numel() for name, weight in self.blocks.named_parameters() if "norm" in name)
        attention = 4 * self._layers * self._width * self._window if self.drops_attention else 0
        return self._window * (2 * norms + attention)


class Block(nn.Module):
    """Attention and a perceptron, each normalized before and added to the stream."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width, bias=False)
        self.attention = Attention(width, heads, dropout)
        self.mlp_norm = nn.LayerNorm(width, bias=False)
        self.mlp = Perceptron(width, dropout)

    def forward(self, stream: Tensor) -> Tensor:
        """The stream, one layer on."""
        stream = stream + self.attention(self.attention_norm(stream))
        return stream + self.mlp(self.mlp_norm(stream))  # type: ignore[no-any-return] # a Module's call


class Attention(nn.Module):
    """Each token looks at itself and at those before."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self._head_width = width // heads
        # Three layers and not one: cut by rows, each rank then has query, key and value of the same heads.
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.attend = Attend(dropout)
        self.out = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Tensor) -> Tensor:
        """What the tokens found, ``(n, time, width)``."""
        query, key, value = (self._by_head(layer(stream)) for layer in (self.query, self.key, self.value))
        found = self.attend(query, key, value)
        return self.dropout(self.out(found.transpose(1, 2).flatten(2)))  # type: ignore[no-any-return] # as above

    def _by_head(self, projected: Tensor) -> Tensor:
        """``(n, heads, time, width of a head)``; of the heads that are here, which may be a part of them."""
        n, time, width = projected.shape
        return projected.view(n, time, width // self._head_width, self._head_width).transpose(1, 2)


class Attend(nn.Module):
    """Attention of some heads, each by itself: of all, or of those that a rank has."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.share = dropout

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Each and the result ``(n, heads, time, width of a head)``."""
        dropout = self.share if self.training else 0.0
        return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)


class Perceptron(nn.Module):
    """One hidden layer of four times the width."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, 4 * width, bias=False)
        self.out = nn.Linear(4 * width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Tensor) -> Tensor:
        """The perceptron's output, ``(n, time, width)``."""
        return self.dropout(self.out(functional.gelu(self.hidden(stream))))  # type: ignore[no-any-return] # as above


class Head(nn.Module):
    """The output layer, whose weights are those of the token embedding."""

    def forward(self, stream: Tensor, weight: Tensor) -> Tensor:
        """Logits, ``(n, time, vocabulary)``."""
        return functional.linear(stream, weight)


_EVEN = "Give a width that is a multiple of heads."
