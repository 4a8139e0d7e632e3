"""The plain loop, with heartbeats to the monitor of nvidia-resiliency-ext."""

from datetime import timedelta

import loop_parts
import torch
import torch.distributed as dist
from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = loop_parts.FOLDER / "checkpoint.pt"


def main() -> None:
    """Train."""
    monitor = RankMonitorClient()
    monitor.init_workload_monitoring()
    dist.init_process_group("gloo", timeout=timedelta(seconds=loop_parts.TIMEOUT_SECONDS))
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
        monitor.send_heartbeat()
        loop_parts.hang_if_requested()
        optimizer.zero_grad()
        ddp(loop_parts.batch(step, rank, world)).backward()
        optimizer.step()
        if rank == 0 and step % loop_parts.SAVE_STEPS == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, CHECKPOINT.with_suffix(".partial"))
            CHECKPOINT.with_suffix(".partial").replace(CHECKPOINT)
        trace.commit(step, rank, world, model)
    monitor.shutdown_workload_monitoring()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
