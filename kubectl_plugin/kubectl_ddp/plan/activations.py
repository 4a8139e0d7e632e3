"""How many numbers of a pass are kept for the backward pass, block by block.

Counted from what autograd saves of a pre-norm block (``ddp_trainer.train.models.gpt``) with an attention that keeps no
scores (FlashAttention; Dao et al., 2022). With ``x`` = samples x tokens x width, a block keeps

    2x  what enters its two norms, in the stream's numbers
    2x  what enters queries-keys-values and the perceptron
    3x  queries, keys and values (less where several queries share keys)
     x  what attention found
    8x  the perceptron's hidden layer, before and after its activation (4 x its width where it is gated)

16x in all: the 34 bytes of "Reducing Activation Recomputation in Large Transformer Models" (Korthikanti et al., 2022;
equation 1, in 16 bits), less two masks of dropout of a byte each, and less the term 5as/h of attention's scores. Beside
it are what norms and attention keep per row. Tensor parallelism with a divided sequence (the same paper, section 4.2.2)
divides all of it but what enters matrices: torch gathers that before the multiplication and keeps it whole.

A block that computes again keeps what enters it, and where that is cheap also what its matrix products and attention
gave: 10x, of which tensor parallelism leaves the 2x whole that are still to be added up over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kubectl_ddp.plan.choice import Choice
from kubectl_ddp.plan.recomputation import Recomputation
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import Precision, Work

_SINGLE: Final = 4
"""Bytes of a number in 32 bits."""
_LOSS_BYTES: Final = {Precision.FP32: 3 * _SINGLE, Precision.BF16: 2 + 3 * _SINGLE}
"""Per logit, while the loss is computed: the logits, a copy with the classes last, and their log-softmax; in 16 bits
also the logits before they were made longer."""


@dataclass(frozen=True, slots=True)
class ActivationMemory:
    """Bytes that one micro-batch takes on one rank."""

    stream: float
    """What enters a block: all that is kept of it where activations are computed again."""
    block: float
    """All that a block keeps, ``stream`` included."""
    costly: float
    """What a block's matrix products and attention gave."""
    unused: float
    """Of it, what its last product gave, which nothing needs and torch keeps until the block is done."""
    backward: float
    """What a block's backward pass takes beside it, at its most: the gradients of the stream and of the perceptron's
    hidden layer."""
    head: float
    """What enters the last norm and the output layer."""
    loss: float
    """While the loss is computed."""


def activation_memory(shape: Shape, work: Work, choice: Choice) -> ActivationMemory:
    """What one micro-batch keeps."""
    tp, computed = choice.layout.tp, work.precision.computed
    rows = choice.micro_batch * work.sequence
    streamed = stream_bytes(work, choice)
    stream = rows * shape.hidden * streamed / tp
    perceptron = (4 if shape.is_gated else 2) * shape.intermediate_size
    entering = 2 * rows * shape.hidden * computed
    within = rows * (shape.qkv + shape.hidden + perceptron) * computed / tp
    of_attention = rows * shape.heads / tp * _SINGLE
    statistics = rows * 4 / tp * _SINGLE + of_attention
    product = rows * shape.hidden * computed
    made = rows * (shape.qkv + shape.hidden + perceptron / 2) * computed / tp
    return ActivationMemory(
        stream=stream,
        block=2 * stream + entering + within + statistics,
        costly=made + of_attention + 2 * product,
        unused=product,
        backward=stream + rows * perceptron / 2 * computed / tp,
        head=stream + rows * shape.hidden * computed + 2 * rows / tp * _SINGLE,
        loss=rows * shape.vocabulary * _LOSS_BYTES[work.precision] / tp,
    )


def left(held: ActivationMemory, recomputation: Recomputation) -> float:
    """What a block keeps that computes the rest again."""
    return held.stream + (held.costly if recomputation.is_cheap else 0.0)


def stream_bytes(work: Work, choice: Choice) -> int:
    """Bytes of a number between blocks: under autocast sums stay in 32 bits; blocks gathered in 16 make it as short."""
    return work.precision.computed if choice.is_gathered_per_block else _SINGLE
