"""Bytes of activations that autograd keeps for the backward pass, per block.

Counted from the tensors that autograd saves for a pre-norm block (``ddp_trainer.train.models.gpt``) with an attention
that does not store scores (FlashAttention; Dao et al., 2022). With ``x`` = samples x tokens x width, a block keeps

  2x  inputs of its two norms, in the precision of the residual stream
  2x  inputs of the query-key-value projection and of the perceptron
  3x  queries, keys and values (less with grouped queries)
   x  output of attention
  8x  hidden layer of the perceptron, before and after its activation (4 x its width if it is gated)

16x in total. This equals the 34 bytes of "Reducing Activation Recomputation in Large Transformer Models" (Korthikanti
et al., 2022; equation 1, in 16 bits), less two dropout masks of one byte each and the term 5as/h of attention scores.
Norms and attention keep additional values per row. Tensor parallelism with a split sequence (the same paper, section
4.2.2) divides everything except the inputs of matrices: torch gathers these before the multiplication and keeps them
whole.

A recomputed block keeps its input. If only cheap parts are recomputed, it also keeps the outputs of its matrix products
and of attention: 10x. Tensor parallelism does not divide 2x of these, the partial sums that are still to be reduced
over ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kubectl_ddp.plan.choice import Choice
from kubectl_ddp.plan.recomputation import Recomputation
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import Precision, Work

_SINGLE: Final = 4
"""Bytes of a 32-bit number."""
_LOSS_BYTES: Final = {Precision.FP32: 3 * _SINGLE, Precision.BF16: 2 + 3 * _SINGLE}
"""Bytes per logit during the loss: logits, a copy with the classes last, and their log-softmax; in 16 bits also the
logits before the cast.
"""


@dataclass(frozen=True, slots=True)
class ActivationMemory:
    """Activation bytes of one micro-batch on one rank."""

    stream: float
    """Input of a block: all that is kept if the whole block is recomputed."""
    block: float
    """All activations of a block, including ``stream``."""
    costly: float
    """Outputs of a block's matrix products and of attention."""
    unused: float
    """Part of ``costly`` from the last product. It is not needed, but torch keeps it until the block is done."""
    backward: float
    """Peak of additional memory in a block's backward pass: gradients of stream and hidden layer."""
    head: float
    """Inputs of the last norm and of the output layer."""
    loss: float
    """Memory of the loss computation."""


def activation_memory(shape: Shape, work: Work, choice: Choice) -> ActivationMemory:
    """Return the activation bytes of one micro-batch."""
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
    """Return the bytes that a recomputed block keeps."""
    return held.stream + (held.costly if recomputation.is_cheap else 0.0)


def stream_bytes(work: Work, choice: Choice) -> int:
    """Return the bytes per number between blocks: 4 under autocast, less if blocks are gathered in 16 bits."""
    return work.precision.computed if choice.is_gathered_per_block else _SINGLE
