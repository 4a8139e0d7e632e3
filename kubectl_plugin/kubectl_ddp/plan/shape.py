"""The shape of a decoder-only transformer, and how many weights, operations and numbers to keep follow from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kubectl_ddp.errors import UsageError

MOST: Final = 10**7
"""Largest number in a shape: far above any model, so that a slip of the hand is told at once."""
_MEANT: Final = {
    "layers": "--layers",
    "hidden": "--hidden",
    "heads": "--heads",
    "kv_heads": "--kv-heads",
    "vocabulary": "--vocab",
    "feed_forward": "--ffn",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A transformer; by default as the trainer's own GPT: GPT-2 without biases, whose embedding is the output layer."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    window: int
    """Positions that have a learned embedding; 0 where positions are rotated, which takes no weights."""
    kv_heads: int = 0
    """Heads of keys and values, where several queries share one (Ainslie et al., 2023); 0: as many as ``heads``."""
    feed_forward: int = 0
    """Width of the perceptron's hidden layer; 0: four times ``hidden``."""
    is_gated: bool = False
    """The perceptron has a third matrix, whose product opens and closes it (SwiGLU; Shazeer, 2020)."""
    is_tied: bool = True
    """The embedding is also the output layer."""
    cuts_vocabulary: bool = False
    """Ranks of tensor parallelism have as many tokens of the vocabulary each, as in the trainer's own GPT; where it is
    not said, a vocabulary is taken to be filled up until they can."""

    def __post_init__(self) -> None:
        """Raises UsageError for a shape that no model has."""
        for name, flag in _MEANT.items():
            least = 0 if name in {"kv_heads", "feed_forward"} else 1
            if not least <= (value := getattr(self, name)) <= MOST:
                raise UsageError(f"{flag} is {value}.", hint=f"Give a whole number from 1 to {MOST}.")
        if self.hidden % self.heads:
            raise UsageError(
                f"--hidden {self.hidden} cannot be divided among --heads {self.heads}.",
                hint="Give a width that is a multiple of the heads.",
            )
        if self.heads % self.keys:
            raise UsageError(
                f"--heads {self.heads} cannot share --kv-heads {self.keys}.", hint="Give a divisor of the heads."
            )

    @property
    def keys(self) -> int:
        """Heads of keys, and of values."""
        return self.kv_heads or self.heads

    @property
    def intermediate_size(self) -> int:
        """Width of the perceptron's hidden layer."""
        return self.feed_forward or 4 * self.hidden

    @property
    def qkv(self) -> int:
        """Numbers per token that queries, keys and values are."""
        return self.hidden + 2 * self.hidden * self.keys // self.heads

    @property
    def block_matrices(self) -> int:
        """Weights of a block that are multiplied with, which tensor parallelism divides.

        >>> Shape(layers=1, hidden=8, heads=2, vocabulary=16, window=4).block_matrices == 12 * 8 * 8
        True
        """
        attention = self.hidden * self.qkv + self.hidden * self.hidden
        return attention + (3 if self.is_gated else 2) * self.hidden * self.intermediate_size

    @property
    def block(self) -> int:
        """Weights of a block, those of its two norms included."""
        return self.block_matrices + 2 * self.hidden

    @property
    def embedding(self) -> int:
        """Weights of the embedding of tokens; those of the output layer are as many."""
        return self.vocabulary * self.hidden

    @property
    def position_embedding_params(self) -> int:
        """Weights of the embedding of positions."""
        return self.window * self.hidden

    @property
    def parameters(self) -> int:
        """All weights; an embedding that is also the output layer counts once."""
        ends = self.embedding * (1 if self.is_tied else 2) + self.position_embedding_params
        return self.layers * self.block + ends + self.hidden

    def flops_per_token(self, sequence: int) -> int:
        """Floating-point operations to learn from one token, forward and backward.

        ``6·N`` for the weights that are multiplied with, norms included, and ``12·layers·hidden·sequence`` for
        attention: "PaLM" (Chowdhery et al., 2022), appendix B. The reference trainer counts in the same way.
        """
        multiplied = self.layers * self.block + self.hidden + self.embedding
        return 6 * multiplied + 12 * self.layers * self.hidden * sequence

    def recompute_flops_per_token(self, sequence: int) -> int:
        """Those that all blocks do once more where their activations are dropped.

        Their forward pass but for the last layer, whose output nothing needs; the reference trainer counts alike.
        """
        again = self.block - self.hidden * self.intermediate_size
        return self.layers * (2 * again + 4 * self.hidden * sequence)
