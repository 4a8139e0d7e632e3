"""Shape of a decoder-only transformer, with its numbers of weights, operations and activations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kubectl_ddp.errors import UsageError

MOST: Final = 10**7
"""Maximum of any number in a shape: far above any model, so that typing errors are detected."""
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
    """Shape of a transformer. The defaults describe the trainer's GPT: GPT-2 without biases, with tied embeddings."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    window: int
    """Number of learned position embeddings; 0 for rotary positions, which have no weights."""
    kv_heads: int = 0
    """Heads of keys and values with grouped queries (Ainslie et al., 2023); 0 for the same number as ``heads``."""
    feed_forward: int = 0
    """Width of the perceptron's hidden layer; 0 for four times ``hidden``."""
    is_gated: bool = False
    """True if the perceptron has a third matrix as gate (SwiGLU; Shazeer, 2020)."""
    is_tied: bool = True
    """True if the embedding is also the output layer."""
    cuts_vocabulary: bool = False
    """True if tensor parallelism divides the vocabulary evenly, as in the trainer's own GPT.

    If False, the vocabulary is assumed to be padded until it divides.
    """

    def __post_init__(self) -> None:
        """Check the shape.

        Raises:
            UsageError: If a number is out of range or the heads do not divide evenly.
        """
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
        """Number of key heads, equal to the number of value heads."""
        return self.kv_heads or self.heads

    @property
    def intermediate_size(self) -> int:
        """Width of the perceptron's hidden layer."""
        return self.feed_forward or 4 * self.hidden

    @property
    def qkv(self) -> int:
        """Numbers per token in queries, keys and values together."""
        return self.hidden + 2 * self.hidden * self.keys // self.heads

    @property
    def block_matrices(self) -> int:
        """Weights in a block's matrices, which tensor parallelism divides.

        >>> Shape(layers=1, hidden=8, heads=2, vocabulary=16, window=4).block_matrices == 12 * 8 * 8
        True
        """
        attention = self.hidden * self.qkv + self.hidden * self.hidden
        return attention + (3 if self.is_gated else 2) * self.hidden * self.intermediate_size

    @property
    def block(self) -> int:
        """Weights of a block, including its two norms."""
        return self.block_matrices + 2 * self.hidden

    @property
    def embedding(self) -> int:
        """Weights of the token embedding; an untied output layer has the same number."""
        return self.vocabulary * self.hidden

    @property
    def position_embedding_params(self) -> int:
        """Weights of the position embedding."""
        return self.window * self.hidden

    @property
    def parameters(self) -> int:
        """Total number of weights; a tied embedding counts once."""
        ends = self.embedding * (1 if self.is_tied else 2) + self.position_embedding_params
        return self.layers * self.block + ends + self.hidden

    def flops_per_token(self, sequence: int) -> int:
        """Return the floating-point operations per trained token, forward and backward.

        ``6·N`` for the weights in multiplications, norms included, and ``12·layers·hidden·sequence`` for attention. The
        reference trainer counts in the same way.

        Source: "PaLM" (Chowdhery et al., 2022), appendix B.
        """
        multiplied = self.layers * self.block + self.hidden + self.embedding
        return 6 * multiplied + 12 * self.layers * self.hidden * sequence

    def recompute_flops_per_token(self, sequence: int) -> int:
        """Return the operations per token of recomputing all blocks.

        This is their forward pass without the last layer, whose output is not needed. The reference trainer counts in
        the same way.
        """
        again = self.block - self.hidden * self.intermediate_size
        return self.layers * (2 * again + 4 * self.hidden * sequence)
