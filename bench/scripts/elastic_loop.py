"""A user's loop under ``ddp_trainer.elastic``, which prints its steps as events for a measurement."""

import argparse
import json
import os
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

from ddp_trainer import elastic

SAMPLES = 4096
BATCH = 32


def main() -> None:
    """Train a small model until a request to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pause", type=float, default=0.02, help="seconds that a step takes at least")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = TensorDataset(torch.randn(SAMPLES, 64))
    generation = ""
    with elastic.run(model, optimizer, data, global_batch=BATCH, batch_slices=4, epochs=1_000_000) as job:
        for step in job:
            if job.rank == 0 and generation != os.environ["DDP_GENERATION"]:
                generation = os.environ["DDP_GENERATION"]
                print_event({"event": "started", "world_size": job.world_size})
            for (inputs,) in step:
                step.backward(model(inputs).square().mean())
            if job.rank == 0:
                print_event({"event": "step", "step": step.number})
            time.sleep(options.pause)


def print_event(event: dict[str, object]) -> None:
    """One line in one write."""
    os.write(1, json.dumps(event).encode() + b"\n")


if __name__ == "__main__":
    main()
