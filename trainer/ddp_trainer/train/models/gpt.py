"""A GPT of any size: a decoder-only transformer, pre-norm, as GPT-2 (Radford et al., 2019), without biases.

The token embedding is also the output layer. Attention is torch's ``scaled_dot_product_attention``, causal.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddp_trainer.train.errors import BadConfig
from ddp_trainer.train.models.demand import at_least, share

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
        return functional.linear(self.norm(stream), self.tokens.weight)

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
        self._heads = heads
        self._dropout = dropout
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.dropout = nn.Dropout(dropout)

    def forward(self, stream: Tensor) -> Tensor:
        """What the tokens found, ``(n, time, width)``."""
        n, time, width = stream.shape
        heads = self.qkv(stream).view(n, time, 3, self._heads, width // self._heads)
        query, key, value = heads.permute(2, 0, 3, 1, 4)
        dropout = self._dropout if self.training else 0.0
        found = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return self.dropout(self.out(found.transpose(1, 2).reshape(n, time, width)))  # type: ignore[no-any-return] # as above


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


_EVEN = "Give a width that is a multiple of heads."
