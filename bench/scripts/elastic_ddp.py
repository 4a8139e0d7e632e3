"""A plain DDP script for a stock elastic PyTorchJob: saves after every step, resumes from what its pod kept.

Every rank prints each step as an event, with the time at which its process began.
"""

import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BEGAN = time.time()
CHECKPOINT = Path(os.environ.get("DDP_CHECKPOINT_DIR", "/kept"), "checkpoint.pt")
PAUSE = 0.02


def save(state: dict[str, object]) -> None:
    """Replace the checkpoint in one move."""
    partial = CHECKPOINT.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(CHECKPOINT)


def main() -> None:
    """Train a small model until a request to stop."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        step = state["step"]
    ddp = DistributedDataParallel(model)
    while True:
        step += 1
        optimizer.zero_grad()
        ddp(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step})
        event = {"event": "step", "step": step, "world": dist.get_world_size(), "began": BEGAN, "pid": os.getpid()}
        os.write(1, json.dumps(event).encode() + b"\n")
        time.sleep(PAUSE)


if __name__ == "__main__":
    main()
