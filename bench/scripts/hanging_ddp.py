"""A plain DDP script, which knows torch and torchrun and nothing of this project, and gets into trouble on order.

Every step ends in a barrier, as those of many scripts do, which is the collective that a rank may skip.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from hang_faults import barrier, inject_fault
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Train a small model for so many steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--ready", type=int, default=40, help="the step after which it says that it is under way")
    parser.add_argument("--pause", type=float, default=0.05, help="seconds that a step takes at least")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model = DistributedDataParallel(torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(options.steps):
        fault = inject_fault(rank)
        optimizer.zero_grad()
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        barrier(fault)
        if step == options.ready and rank == 0:
            generation = os.environ.get("DDP_GENERATION", "0")
            os.write(1, f"ready: pid={os.getpid()} generation={generation}\n".encode())
        time.sleep(options.pause)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
