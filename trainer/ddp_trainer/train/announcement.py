"""What a run says of itself when it begins: what was derived from the flags and the surroundings."""

from __future__ import annotations

from torch import nn

from ddp_trainer.train.group import Group
from ddp_trainer.train.plan import Plan, shares
from ddp_trainer.train.progress import Started


def started(task: str, model: nn.Module, plan: Plan, group: Group, *, step: int, flops: int | None = None) -> Started:
    """The run goes on after ``step`` steps; ``flops`` are those of one sample, where the model knows them."""
    sizes = shares(plan.global_batch, plan.shards, group.world_size)
    return Started(
        task=task,
        world_size=group.world_size,
        backend=group.backend,
        device=str(group.device),
        shards=plan.shards,
        global_batch=plan.global_batch,
        per_rank=str(sizes[0]) if min(sizes) == max(sizes) else f"{min(sizes)}-{max(sizes)}",
        samples=plan.samples,
        steps_per_epoch=plan.steps_per_epoch,
        steps=plan.total_steps,
        resumed_step=step,
        weights=sum(weight.numel() for weight in model.parameters()),
        flops_per_sample=flops,
    )
