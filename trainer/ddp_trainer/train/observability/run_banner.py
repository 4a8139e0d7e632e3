"""First messages of a run, with the values derived from flags and environment."""

from __future__ import annotations

from torch import nn

from ddp_trainer.train.data.batch_plan import BatchPlan, shares
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.console import Started


def started(
    task: str, model: nn.Module, plan: BatchPlan, group: Group, *, step: int, flops: int | None = None
) -> Started:
    """Return the event for the start of training.

    Args:
        task: Name of the task.
        model: Model whose weights are counted.
        plan: Batches of the run.
        group: Process group.
        step: Number of steps that are committed already.
        flops: Floating-point operations for one sample, or None if the model does not provide them.
    """
    sizes = shares(min(plan.global_batch, plan.samples), plan.batch_slices, group.data_size)
    return Started(
        task=task,
        world_size=group.world_size,
        backend=group.backend,
        device=str(group.device),
        batch_slices=plan.batch_slices,
        global_batch=plan.global_batch,
        per_rank=str(sizes[0]) if min(sizes) == max(sizes) else f"{min(sizes)}-{max(sizes)}",
        samples=plan.samples,
        steps_per_epoch=plan.steps_per_epoch,
        steps=plan.total_steps,
        resumed_step=step,
        weights=sum(weight.numel() for weight in model.parameters()),
        flops_per_sample=flops,
    )


def on_small_data(plan: BatchPlan) -> str:
    """Return a message if the data set has fewer samples than a global batch, else an empty string."""
    if plan.endless or plan.samples >= plan.global_batch:
        return ""
    return (
        f"The data set has {plan.samples} samples, fewer than the global batch of {plan.global_batch}: "
        "every epoch is one step of all of them."
    )
