"""Layers of the GPT, and the attributes of the model that its tensor and pipeline parallel versions read."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor, nn
from torch.nn import functional


class GptParts(Protocol):
    """Attributes of :class:`~ddp_trainer.train.models.gpt.Gpt` that its plans read."""

    tokens: nn.Embedding
    positions: nn.Embedding
    dropout: nn.Dropout
    blocks: nn.ModuleList
    norm: nn.LayerNorm
    head: Head
    heads: int

    @property
    def has_attention_dropout(self) -> bool:
        """True if attention has dropout."""


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
