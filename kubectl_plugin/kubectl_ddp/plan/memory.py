"""Peak memory of a rank during a step, by use.

Weights, gradients and optimizer take 4 + 4 + 8 bytes per weight with AdamW, the 16 bytes of "ZeRO" (Rajbhandari et al.,
2020, section 3.1). Its third stage divides all of them by ``shard``. Sharded weights are gathered one block at a time,
and the next block is prefetched during computation.

A pipeline stage under 1F1B keeps the activations of at most as many micro-batches as there are stages from it to the
end ("PipeDream-2BW", Narayanan et al., 2021). If stages are sharded, the trainer gathers a stage's weights once for all
micro-batches. In addition to its shards, a rank then holds the whole weights of its stage and their whole gradients,
until these are reduce-scattered one bucket at a time. Without stages, gradients are also whole if a step has several
passes: torch accumulates them and reduce-scatters them in the last pass. Torch's stages receive each micro-batch of a
step in a separate buffer, in both directions, and keep these buffers permanently.

Memory use has no single peak moment: gradients grow as activations shrink. The sum is therefore computed at every
moment that can be the peak, and the largest counts. ``bench plan`` compares it with measurements of a run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from kubectl_ddp.plan.activations import ActivationMemory, activation_memory, left
from kubectl_ddp.plan.choice import Choice
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import KEPT_OF_WEIGHT, Precision, Work

_SINGLE: Final = 4
_GATHERED: Final = 2
"""Number of blocks with gathered weights: the current one and the prefetched one."""
_BUCKET: Final = 25 << 20
"""Bucket size in bytes: the trainer adds no further gradient to a bucket of this size."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Bytes in use on a rank at one moment."""

    weights: float
    gradients: float
    optimizer: float
    activations: float
    moment: str
    """Moment in the step."""
    stage: int = 0
    """Pipeline stage with the highest need, from 0."""

    @property
    def total(self) -> float:
        """Sum of all parts."""
        return self.weights + self.gradients + self.optimizer + self.activations

    @property
    def largest(self) -> str:
        """Name of the largest part."""
        parts = {name: getattr(self, name) for name in ("weights", "gradients", "optimizer", "activations")}
        return max(parts, key=lambda name: parts[name])


@dataclass(frozen=True, slots=True)
class Stage:
    """Content of one pipeline stage; without a pipeline, the only stage contains everything."""

    first: int
    """Index of its first layer in the model, from 0."""
    layers: int
    block: float
    """Weights of a block on this rank, before sharding."""
    ends: float
    """Weights of embedding, positions, last norm and output layer that the stage contains."""
    embedding: float
    """Weights of the token embedding, or of the output layer."""
    is_first: bool
    is_last: bool
    in_flight: int
    """Micro-batches whose activations are kept at the same time."""

    @property
    def weights(self) -> float:
        """All weights of the stage on this rank, before sharding."""
        return self.layers * self.block + self.ends

    def largest(self, shape: Shape, tp: int) -> float:
        """Return the number of weights of the largest matrix on this rank."""
        embedding = (
            max(self.embedding, shape.position_embedding_params) if self.is_first else self.embedding * self.is_last
        )
        return max(embedding, shape.hidden * max(shape.qkv, shape.intermediate_size) / tp)


def stages(shape: Shape, choice: Choice) -> Iterator[Stage]:
    """Yield the pipeline stages; the first stages get the remaining layers."""
    pp, tp = choice.layout.pp, choice.layout.tp
    each, more = divmod(shape.layers, pp)
    embedding = shape.embedding / tp
    for number in range(pp):
        is_first, is_last = number == 0, number == pp - 1
        has_output = is_last and not (is_first and shape.is_tied)
        ends = (
            (embedding + shape.position_embedding_params) * is_first + embedding * has_output + shape.hidden * is_last
        )
        yield Stage(
            first=number * each + min(number, more),
            layers=each + (number < more),
            block=shape.block_matrices / tp + 2 * shape.hidden,
            ends=ends,
            embedding=embedding,
            is_first=is_first,
            is_last=is_last,
            in_flight=min(choice.passes, pp - number),
        )


def memory(shape: Shape, work: Work, choice: Choice) -> Memory:
    """Return the peak memory over all ranks, with its moment."""
    held = activation_memory(shape, work, choice)
    found = [
        replace(moment, stage=number)
        for number, stage in enumerate(stages(shape, choice))
        for moment in _peak_candidates(shape, work, choice, stage, held)
    ]
    return max(found, key=lambda moment: moment.total)


def _peak_candidates(
    shape: Shape, work: Work, choice: Choice, stage: Stage, held: ActivationMemory
) -> Iterator[Memory]:
    """Yield the memory in use at every moment that can be the peak."""
    layout = choice.layout
    stays = choice.passes > 1 or (layout.replicate > 1 and layout.shard == 1)  # accumulated, or in DDP's buckets
    pieces = stage.weights / layout.shard * _SINGLE
    among = (
        1 if choice.is_gathered_per_stage or choice.passes > 1 else layout.shard
    )  # number of ranks over which the gradients of passes are divided
    whole = stage.weights / among * _SINGLE
    now = Memory(
        weights=pieces + _copies(work, choice, stage),
        gradients=whole if stays else 0.0,
        optimizer=stage.weights / layout.shard * KEPT_OF_WEIGHT[work.optimizer],
        activations=0.0,
        moment="",
    )
    in_one = _activation_bytes(stage.layers, choice, stage, held)
    buffers = _recv_buffer_count(choice, stage) * held.stream
    others = (stage.in_flight - 1) * in_one + buffers
    made = stage.embedding / among * _SINGLE if stage.is_last else 0.0
    fresh = _fresh(shape, work, choice, stage)
    if stage.is_last:
        yield replace(now, activations=others + in_one + held.head + held.loss, moment="loss")
    unused = held.unused if choice.recomputation.is_cheap else 0.0
    for block, moment in _peak_blocks(choice, stage).items():
        above = (stage.layers - 1 - block) * stage.block / among * _SINGLE
        yield replace(
            now,
            gradients=(now.gradients or made + above) + fresh,
            activations=others + _activation_bytes(block, choice, stage, held) + held.block + unused + held.backward,
            moment=moment,
        )
    if stage.is_first:
        embedded = stage.embedding * _SINGLE
        yield replace(now, gradients=whole + embedded, activations=others + held.stream, moment="embedding's gradient")
    if choice.is_gathered_per_stage:
        weights, dealt = pieces + whole, whole + _reduce_scatter_bytes(shape, choice, stage)
        yield replace(now, weights=weights, gradients=dealt, activations=buffers, moment="dealing out of gradients")
    yield replace(now, weights=pieces, gradients=pieces, activations=buffers, moment="optimizer")


def _recv_buffer_count(choice: Choice, stage: Stage) -> int:
    """Return the number of receive buffers of a stage, without those counted as activations in flight."""
    if choice.layout.pp == 1:
        return 0
    there, back = not stage.is_first, not stage.is_last
    return choice.passes * (there + back) - stage.in_flight * there


def _reduce_scatter_bytes(shape: Shape, choice: Choice, stage: Stage) -> float:
    """Return the bytes of two copies of the gradients in sending order, and of this rank's shard of their sum."""
    most = min(stage.weights * _SINGLE, _BUCKET + stage.largest(shape, choice.layout.tp) * _SINGLE)
    return (2 + 1 / choice.layout.shard) * most


def _activation_bytes(blocks: int, choice: Choice, stage: Stage, held: ActivationMemory) -> float:
    """Return the activation bytes that the first ``blocks`` blocks of the stage keep of one micro-batch."""
    again = _recomputed_blocks(blocks, choice, stage)
    return again * left(held, choice.recomputation) + (blocks - again) * held.block


def _recomputed_blocks(blocks: int, choice: Choice, stage: Stage) -> int:
    """Return the number of recomputed blocks among the first ``blocks`` blocks of the stage."""
    return choice.recomputation.blocks(stage.first + blocks) - choice.recomputation.blocks(stage.first)


def _peak_blocks(choice: Choice, stage: Stage) -> Mapping[int, str]:
    """Return the blocks of the stage whose backward pass can be the peak, with the name of that moment.

    Between two recomputed blocks, memory use only grows or only shrinks, and so does the total.
    """
    found = {stage.layers - 1: "backward of the last block", 0: "backward of the first block"}
    if every := choice.recomputation.every:
        first, last = -(stage.first + 1) % every, (stage.first + stage.layers) // every * every - 1 - stage.first
        for block in (first, last) if first <= last else ():
            found.setdefault(block, f"backward of block {block + 1}")
    return found


def _copies(work: Work, choice: Choice, stage: Stage) -> float:
    """Return the bytes of weight copies for computation: gathered, or cast by autocast in each pass.

    A micro-batch keeps autocast's copies for its backward pass, except those of recomputed blocks.
    """
    if choice.is_gathered_per_block:
        return (stage.ends + min(_GATHERED, stage.layers) * stage.block) * work.precision.computed
    gathered = stage.weights * _SINGLE if choice.is_gathered_per_stage else 0.0
    if work.precision is Precision.FP32:
        return gathered
    kept = stage.layers - _recomputed_blocks(stage.layers, choice, stage)
    return gathered + (stage.weights + (stage.in_flight - 1) * kept * stage.block) * work.precision.computed


def _fresh(shape: Shape, work: Work, choice: Choice, stage: Stage) -> float:
    """Return the bytes of new gradients that are not yet accumulated or not yet reduce-scattered."""
    if choice.is_gathered_per_block:
        return stage.block * (work.precision.computed + _SINGLE)
    return shape.hidden * shape.intermediate_size / choice.layout.tp * work.precision.computed
