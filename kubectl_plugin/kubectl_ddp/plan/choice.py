"""One way to train: a layout, the samples of a pass, and what is computed again; and all the ways there are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ddp_trainer.common.model_constraints import logical_shards, of_micro_batches, share
from ddp_trainer.common.parallel_dims import Layout
from kubectl_ddp.plan.machine import Machine
from kubectl_ddp.plan.recomputation import TRIED, Recomputation
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import Work
from kubectl_ddp.spec.reference_model import SCHEDULE


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to train."""

    layout: Layout
    micro_batch: int
    """Samples of one pass on a rank."""
    passes: int
    """Passes of a step on the rank that has most of them: of a pipeline, its micro-batches."""
    recomputation: Recomputation
    """What is dropped of activations, and computed again in the backward pass."""

    @property
    def is_gathered_per_stage(self) -> bool:
        """Sharded weights of a pipeline's stage are gathered once in a step, all of them, and in 32 bits."""
        return self.layout.shard > 1 and self.layout.pp > 1

    @property
    def is_gathered_per_block(self) -> bool:
        """Sharded weights are gathered block by block in each pass, as numbers that are computed with."""
        return self.layout.shard > 1 and self.layout.pp == 1


def layouts(world: int, names: Sequence[str]) -> Iterator[Layout]:
    """Every layout of so many ranks along these dimensions; the last of them changes slowest.

    >>> [str(each) for each in layouts(2, ("replicate", "shard", "tp", "pp"))]
    ['replicate=2', 'shard=2', 'tp=2', 'pp=2']
    """
    *others, last = names
    if not others:
        yield Layout(**{last: world})
        return
    for size in (each for each in range(1, world + 1) if world % each == 0):
        for layout in layouts(world // size, others):
            yield replace(layout, **{last: size})


def infeasible_reason(layout: Layout, shape: Shape, work: Work, machine: Machine) -> str:
    """Why a model cannot be laid out so, whatever the memory; empty where it can."""
    if layout.tp > machine.per_node:
        return f"tp={layout.tp} is more than the {machine.per_node} GPUs of a node."
    divided = {
        "GPUs of a node": machine.per_node,
        "heads": shape.heads,
        "heads of keys": shape.keys,
        "numbers of a row": shape.hidden,
        "tokens of a sample": work.sequence,
    }
    if shape.cuts_vocabulary:
        divided["tokens of the vocabulary"] = shape.vocabulary
    for name, count in divided.items():
        if count % layout.tp:
            return f"tp={layout.tp} does not divide the {count} {name}."
    if layout.pp > shape.layers:
        return f"pp={layout.pp} is more than the {shape.layers} layers."
    if layout.data_size > work.global_batch:
        return f"{layout.data_size} parts of a batch are more than its {work.global_batch} samples."
    return _microbatch_error(layout, work)


def _microbatch_error(layout: Layout, work: Work) -> str:
    """A pipeline needs as many micro-batches as it has stages, by the schedule that a plan counts with."""
    passes = _least_passes(layout, work, work.micro_batch or 1)
    for _ in of_micro_batches(SCHEDULE, passes, pp=layout.pp):
        return f"{passes} micro-batches of a step are too few for pp={layout.pp}."
    return ""


def _least_passes(layout: Layout, work: Work, size: int) -> int:
    """Micro-batches of so many samples on the rank that has the fewest, as the trainer cuts a batch."""
    parts = layout.data_size
    return -(-share(parts - 1, parts=parts, shards=_shards(layout, work), global_batch=work.global_batch) // size)


def _shards(layout: Layout, work: Work) -> int:
    """Into how many the trainer cuts a batch."""
    return logical_shards(work.shards, max_ranks=layout.world, parts=layout.data_size, global_batch=work.global_batch)


def _at_once(layout: Layout, work: Work) -> tuple[int, int]:
    """Samples that a rank could compute in one pass, and how often it has so many, where it has the most.

    Without a pipeline the trainer computes each shard of a batch by itself; a pipeline takes all of them together.
    """
    if layout.pp > 1:
        return -(-work.global_batch // layout.data_size), 1
    shards = _shards(layout, work)
    return -(-work.global_batch // shards), -(-shards // layout.data_size)


def choices(layout: Layout, work: Work) -> Iterator[Choice]:
    """The ways to train in one layout: passes of a power of two samples, and all, less or nothing computed again."""
    most, times = _at_once(layout, work)
    sizes = [min(work.micro_batch, most)] if work.micro_batch is not None else _sizes(layout, work, most)
    for recomputation in (work.recomputation,) if work.recomputation is not None else TRIED:
        for size in sizes:
            yield Choice(layout, size, times * -(-most // size), recomputation)


def _sizes(layout: Layout, work: Work, most: int) -> list[int]:
    """Powers of two with which a pipeline has its micro-batches."""
    sizes = [1 << power for power in range(most.bit_length())]
    return [
        size for size in sizes if not any(of_micro_batches(SCHEDULE, _least_passes(layout, work, size), pp=layout.pp))
    ]
