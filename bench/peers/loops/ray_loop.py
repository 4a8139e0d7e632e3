"""The plain loop in Ray Train."""

import os

import loop_parts
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchConfig, TorchTrainer
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = loop_parts.FOLDER / "checkpoint.pt"


def main() -> None:
    """Train."""
    rank, world = dist.get_rank(), dist.get_world_size()
    model, optimizer = loop_parts.build()
    first = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    ddp = DistributedDataParallel(model)
    trace = loop_parts.Trace()
    for step in range(first + 1, loop_parts.STEPS + 1):
        loop_parts.hang_if_requested()
        optimizer.zero_grad()
        ddp(loop_parts.batch(step, rank, world)).backward()
        optimizer.step()
        if rank == 0 and step % loop_parts.SAVE_STEPS == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, CHECKPOINT.with_suffix(".partial"))
            CHECKPOINT.with_suffix(".partial").replace(CHECKPOINT)
        trace.commit(step, rank, world, model)


if __name__ == "__main__":
    resize_seconds = float(os.environ.get("BENCH_RESIZE_SECONDS", "60"))
    TorchTrainer(
        main,
        torch_config=TorchConfig(backend="gloo", timeout_s=int(loop_parts.TIMEOUT_SECONDS)),
        scaling_config=ray.train.ScalingConfig(num_workers=(1, 2), elastic_resize_monitor_interval_s=resize_seconds),
        run_config=ray.train.RunConfig(
            storage_path=os.fspath(loop_parts.FOLDER / "ray"), failure_config=ray.train.FailureConfig(max_failures=-1)
        ),
    ).fit()
