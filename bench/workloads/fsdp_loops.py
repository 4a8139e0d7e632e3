"""The two loops of ``bench overhead`` over a sharded model: ours, and one written by hand with ``fully_shard``."""

from __future__ import annotations

import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from bench.workloads.overhead_workload import Clock, Timed, Workload
from bench.workloads.trainer_loops import PlainTask, SameOptimizerTask, plain_steps, run_trainer
from ddp_trainer.common.parallel_dims import LayoutRange


def bare_fsdp(work: Workload, clock: Clock) -> None:
    """Train with a plain loop like torch's tutorial: shard each block, then the model."""
    dist.init_process_group("gloo")
    world, rank = dist.get_world_size(), dist.get_rank()
    model = Timed(work, clock)
    for block in model.network.get_submodule("blocks").children():
        fully_shard(block)
    fully_shard(model)
    _set_gradient_averaging(model)
    plain_steps(model, work, clock, world=world, rank=rank)
    dist.destroy_process_group()


def _set_gradient_averaging(model: nn.Module) -> None:
    """Gradients are added up, and divided after that: gloo knows no mean over ranks."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_gradient_divide_factor(float(dist.get_world_size()))
            module.set_force_sum_reduction_for_comms(True)


def ours_fsdp(work: Workload, clock: Clock) -> None:
    """``--parallel shard=2``, with the optimizer that the flags make."""
    run_trainer(PlainTask(work, clock), work, clock, parallel=LayoutRange.parse("shard=2"))


def ours_fsdp_same_optimizer(work: Workload, clock: Clock) -> None:
    """The same, with the optimizer of the loop written by hand, down to its kernel."""
    run_trainer(SameOptimizerTask(work, clock), work, clock, parallel=LayoutRange.parse("shard=2"))
