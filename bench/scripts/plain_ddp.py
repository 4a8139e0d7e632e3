"""A plain DDP script, which uses torch and torchrun, and nothing of this project.

It saves after every step or after some, with ``torch.save`` or ``dcp``, and resumes from its checkpoint. It appends one
JSON line per rank and step to a log, which a measurement reads.
"""

import argparse
import json
import os
import shutil
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from growing_task import add_frozen_weights
from storm_faults import VARIABLE, run_requested_fault
from torch.nn.parallel import DistributedDataParallel


def save(path: Path, state: dict[str, Any], *, is_dcp: bool) -> None:
    """Replace the checkpoint in one move, so that a kill leaves the old one or the new one."""
    partial = path.with_suffix(".partial")
    if is_dcp:
        dcp.save(state, checkpoint_id=partial)  # by all ranks
    if dist.get_rank() == 0:
        if is_dcp:
            shutil.rmtree(path, ignore_errors=True)
        else:
            torch.save(state, partial)
        partial.replace(path)
    if is_dcp:
        dist.barrier()


def load(path: Path, state: dict[str, Any], *, is_dcp: bool) -> dict[str, Any]:
    """Return the checkpoint; dcp loads into the tensors of ``state``."""
    if is_dcp:
        dcp.load(state, checkpoint_id=path)
        return state
    loaded: dict[str, Any] = torch.load(path, weights_only=True, mmap=True)
    return loaded


def main() -> None:
    """Train a small model until a request to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--checkpoint", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--pause", type=float, default=0.02, help="seconds that a step takes at least")
    parser.add_argument("--save-steps", type=int, default=1, help="steps from one save to the next")
    parser.add_argument("--dcp", action="store_true", help="save with torch.distributed.checkpoint")
    options = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    add_frozen_weights(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    first = 0
    if options.checkpoint.exists():
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": 0}
        state = load(options.checkpoint, state, is_dcp=options.dcp)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"]
    ddp = DistributedDataParallel(model)
    with options.trace.open("a", buffering=1) as log:
        for step in range(first + 1, options.steps + 1):
            if VARIABLE in os.environ:
                run_requested_fault()
            optimizer.zero_grad()
            ddp(torch.randn(16, 64)).square().mean().backward()
            optimizer.step()
            if step % options.save_steps == 0 and (rank == 0 or options.dcp):
                state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
                save(options.checkpoint, state, is_dcp=options.dcp)
            line = {"step": step, "time": time.time(), "rank": rank, "world": world, "pid": os.getpid()}
            log.write(json.dumps(line) + "\n")
            time.sleep(options.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
