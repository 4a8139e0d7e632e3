"""Ways to train in a layout: micro-batch size, number of passes, and recomputation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ddp_trainer.common.model_constraints import count_batch_slices, of_micro_batches, share
from ddp_trainer.common.parallel_dims import Layout
from kubectl_ddp.plan.machine import Machine
from kubectl_ddp.plan.recomputation import TRIED, Recomputation
from kubectl_ddp.plan.reference_model import SCHEDULE
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import Work


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to train: layout, micro-batch and recomputation."""

    layout: Layout
    micro_batch: int
    """Samples of one pass on a rank."""
    passes: int
    """Maximum number of passes per step on a rank; for a pipeline, its micro-batches."""
    recomputation: Recomputation
    """Activations that are dropped and recomputed in the backward pass."""

    @property
    def is_gathered_per_stage(self) -> bool:
        """True if a pipeline stage's sharded weights are gathered completely once per step, in 32 bits."""
        return self.layout.shard > 1 and self.layout.pp > 1

    @property
    def is_gathered_per_block(self) -> bool:
        """True if sharded weights are gathered block by block in each pass, in the precision of computation."""
        return self.layout.shard > 1 and self.layout.pp == 1


def layouts(world: int, names: Sequence[str]) -> Iterator[Layout]:
    """Yield every layout of a number of ranks over these dimensions; the last dimension changes slowest.

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
    """Return the reason why a layout is impossible regardless of memory; empty if it is possible."""
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
    """Return an error if a step has fewer micro-batches than the pipeline schedule needs; empty otherwise."""
    passes = _least_passes(layout, work, work.micro_batch or 1)
    for _ in of_micro_batches(SCHEDULE, passes, pp=layout.pp):
        return f"{passes} micro-batches of a step are too few for pp={layout.pp}."
    return ""


def _least_passes(layout: Layout, work: Work, size: int) -> int:
    """Return the number of micro-batches on the rank with the fewest, with the trainer's division of a batch."""
    parts = layout.data_size
    slices = _batch_slices(layout, work)
    return -(-share(parts - 1, parts=parts, batch_slices=slices, global_batch=work.global_batch) // size)


def _batch_slices(layout: Layout, work: Work) -> int:
    """Return the number of batch slices in the trainer."""
    return count_batch_slices(
        work.batch_slices, max_ranks=layout.world, parts=layout.data_size, global_batch=work.global_batch
    )


def _at_once(layout: Layout, work: Work) -> tuple[int, int]:
    """Return the maximum samples of one pass on a rank, and the number of such passes, for the rank with the most.

    Without a pipeline, the trainer computes each batch slice separately. A pipeline computes all of them together.
    """
    if layout.pp > 1:
        return -(-work.global_batch // layout.data_size), 1
    slices = _batch_slices(layout, work)
    return -(-work.global_batch // slices), -(-slices // layout.data_size)


def choices(layout: Layout, work: Work) -> Iterator[Choice]:
    """Yield the ways to train in a layout: micro-batches that are powers of two, with each kind of recomputation."""
    most, times = _at_once(layout, work)
    sizes = [min(work.micro_batch, most)] if work.micro_batch is not None else _sizes(layout, work, most)
    for recomputation in (work.recomputation,) if work.recomputation is not None else TRIED:
        for size in sizes:
            yield Choice(layout, size, times * -(-most // size), recomputation)


def _sizes(layout: Layout, work: Work, most: int) -> list[int]:
    """Return the powers of two that leave enough micro-batches for the pipeline."""
    sizes = [1 << power for power in range(most.bit_length())]
    return [
        size for size in sizes if not any(of_micro_batches(SCHEDULE, _least_passes(layout, work, size), pp=layout.pp))
    ]
