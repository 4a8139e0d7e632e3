"""The plain loop in the in-process wrapper of nvidia-resiliency-ext."""

import os
from datetime import timedelta
from typing import Optional

import loop_parts
import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess
from torch.nn.parallel import DistributedDataParallel

CHECKPOINT = loop_parts.FOLDER / "checkpoint.pt"
PORT = int(os.environ["MASTER_PORT"])


FAST = {
    "monitor_thread_interval": timedelta(seconds=0.1),
    "monitor_process_interval": timedelta(seconds=0.1),
    "heartbeat_interval": timedelta(seconds=0.1),
    "progress_watchdog_interval": timedelta(seconds=0.1),
    "last_call_wait": timedelta(seconds=0.1),
    "soft_timeout": timedelta(seconds=3),
    "hard_timeout": timedelta(seconds=12),  # gloo cannot be aborted: a blocked rank needs the 10 s of its timeout
    "heartbeat_timeout": timedelta(seconds=3),
    "termination_grace_time": timedelta(seconds=0),
}


@inprocess.Wrapper(
    store_kwargs={"host_name": "127.0.0.1", "port": PORT + 1},
    rank_assignment=inprocess.Compose(
        inprocess.rank_assignment.MaxActiveWorldSize(2), inprocess.rank_assignment.ShiftRanks()
    ),
    **(FAST if os.environ["BENCH_FAST"] == "1" else {}),
)
def main(wrapper: Optional[inprocess.CallWrapper] = None) -> None:  # noqa: UP045 the wrapper looks for this type
    """Train."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore("127.0.0.1", PORT + 2 + wrapper.iteration, world, is_master=rank == 0, multi_tenant=True)
    timeout = timedelta(seconds=loop_parts.TIMEOUT_SECONDS)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timeout)
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
        wrapper.ping()
        loop_parts.hang_if_requested()
        optimizer.zero_grad()
        ddp(loop_parts.batch(step, rank, world)).backward()
        optimizer.step()
        if rank == 0 and step % loop_parts.SAVE_STEPS == 0:
            with wrapper.atomic():
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                torch.save(state, CHECKPOINT.with_suffix(".partial"))
                CHECKPOINT.with_suffix(".partial").replace(CHECKPOINT)
        trace.commit(step, rank, world, model)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
