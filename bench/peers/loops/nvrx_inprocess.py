"""The plain loop in the in-process wrapper of nvidia-resiliency-ext."""

import os
from datetime import timedelta

import loop_parts
import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = loop_parts.FOLDER / "checkpoint.pt"


FAST = {
    "monitor_thread_interval": timedelta(seconds=0.1),
    "monitor_process_interval": timedelta(seconds=0.1),
    "heartbeat_interval": timedelta(seconds=0.1),
    "progress_watchdog_interval": timedelta(seconds=0.1),
    "last_call_wait": timedelta(seconds=0.1),
    "soft_timeout": timedelta(seconds=3),
    "hard_timeout": timedelta(seconds=5),
    "heartbeat_timeout": timedelta(seconds=3),
    "termination_grace_time": timedelta(seconds=1),
}


@inprocess.Wrapper(
    store_kwargs={"host_name": "127.0.0.1", "port": int(os.environ["BENCH_STORE_PORT"])},
    initialize=inprocess.initialize.RetryController(min_world_size=1),
    **(FAST if os.environ["BENCH_FAST"] == "1" else {}),
)
def main() -> None:
    """Train."""
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
        loop_parts.hang_if_requested()
        optimizer.zero_grad()
        ddp(loop_parts.batch(step, rank, world)).backward()
        optimizer.step()
        if rank == 0 and step % loop_parts.SAVE_STEPS == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, CHECKPOINT.with_suffix(".partial"))
            CHECKPOINT.with_suffix(".partial").replace(CHECKPOINT)
        trace.commit(step, rank, world, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
