"""A plain script with a hand-written loop, made elastic; its data set and its loop keep a log as train_logged does."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

import torch
from torch import Tensor, nn

from ddp_trainer import elastic

SAMPLES = 150


class Logged(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Points of a line; notes every sample that is fetched."""

    def __init__(self) -> None:
        generation, rank = int(os.environ["DDP_GENERATION"]), os.environ["RANK"]
        # Line-buffered: a killed process has written all it fetched.
        self.log = Path(os.environ["FETCH_LOG"], f"{generation:02}-{rank}").open("w", buffering=1)  # noqa: SIM115
        self.is_asked = False

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.is_asked:
            self.log.write(f"F {index}\n")
        x = torch.tensor([index / SAMPLES, 1 - index / SAMPLES])
        return x, x.sum() * 2


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--log-json", action="store_true")
    parser.add_argument("--checkpoints", type=Path)
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    data = Logged()
    with elastic.run(
        model,
        optimizer,
        data,
        global_batch=8,
        batch_slices=3,
        epochs=arguments.epochs,
        scheduler=scheduler,
        clip_norm=5.0,
        checkpoint_dir=arguments.checkpoints,
        checkpoint_steps=4,
    ) as job:
        data.is_asked = True
        first = job.step
        for step in job:
            if step.number > first:
                # The request for this step shows that the one before was committed.
                data.log.write(f"C {step.number}\n")
            if job.rank == 0:
                print(json.dumps({"event": "step", "step": step.number}), flush=True)
            for inputs, targets in step:
                step.backward((model(inputs).squeeze(1) - targets).square().mean())
        data.log.write(f"C {job.step}\n")
        if job.rank == 0:
            print(json.dumps({"event": "end", **job.summary.to_dict()}), flush=True)


if __name__ == "__main__":
    main()
