"""Parts that every loop of ``bench peers`` shares: model, data, trace, and the hang on request; needs torch only.

The model counts how often each sample went into its weights. ``used`` has one weight per sample, whose gradient is the
share of that sample in the step, so it passes through whatever averages gradients. ``BATCH`` and ``RATE`` are powers of
two, so the count is exact.
"""

import json
import os
import time
from pathlib import Path

import torch
from torch import Tensor, nn

SAMPLES = 4096
BATCH = 32
RATE = 2.0**-6
TENSOR_NUMBERS = 250_000
FOLDER = Path(os.environ["BENCH_FOLDER"])
STEPS = int(os.environ.get("BENCH_STEPS", "1000000"))
SAVE_STEPS = int(os.environ.get("BENCH_SAVE_STEPS", "10"))
TIMEOUT_SECONDS = float(os.environ.get("BENCH_TIMEOUT", "10"))
"""Timeout of collectives; torch's own default for gloo is 30 minutes."""
PAUSE_SECONDS = float(os.environ.get("BENCH_PAUSE", "0.02"))


class Net(nn.Module):
    """A small network, the count of the samples, and untrained weights of ``BENCH_STATE_MB`` megabytes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.used = nn.Parameter(torch.zeros(SAMPLES))
        self.data = torch.randn(SAMPLES, 64)  # no buffer, since DDP would send it with every step
        for number in range(int(os.environ.get("BENCH_STATE_MB", "1"))):
            self.register_parameter(f"ballast_{number}", nn.Parameter(torch.randn(TENSOR_NUMBERS), requires_grad=False))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the mean loss of these samples."""
        loss: Tensor = self.layers(self.data[ids]).square().mean() + self.used[ids].mean()
        return loss


def build() -> tuple[Net, torch.optim.Optimizer]:
    """Return model and optimizer."""
    torch.set_num_threads(1)
    model = Net()
    return model, torch.optim.SGD(model.parameters(), lr=RATE)


def batch(step: int, rank: int, world: int) -> Tensor:
    """Return the ids of one rank's part of a step, which counts from 1."""
    return (torch.arange(rank, BATCH, world) + (step - 1) * BATCH) % SAMPLES


def count_samples(used: Tensor, step: int) -> tuple[int, int]:
    """Return how many samples were lost and repeated, given that every epoch has each of them once."""
    counts = (-used.detach().double() * BATCH / RATE).round().long()
    epochs = step * BATCH // SAMPLES
    lost = (epochs - counts).clamp(min=0).sum() + max(0, step * BATCH - int(counts.sum()))
    return int(lost), int((counts - epochs - 1).clamp(min=0).sum() + max(0, int(counts.sum()) - step * BATCH))


class Trace:
    """Appends one line per committed step and rank; rank 0 writes the weights after some."""

    def __init__(self) -> None:
        self.file = (FOLDER / "steps.jsonl").open("a", buffering=1)

    def commit(self, step: int, rank: int, world: int, model: Net) -> None:
        """Take down a step, then wait for as long as a step takes at least."""
        place = int(os.environ.get("BENCH_PLACE", "0"))
        line = {"step": step, "time": time.time(), "rank": rank, "world": world, "pid": os.getpid(), "place": place}
        self.file.write(json.dumps(line) + "\n")
        if rank == 0 and (step % SAVE_STEPS == 0 or step == STEPS):
            lost, repeated = count_samples(model.used, step)
            weights = torch.cat([weight.detach().flatten() for weight in model.layers.parameters()])
            draft = FOLDER / f"weights.{os.getpid()}"
            torch.save({"step": step, "lost": lost, "repeated": repeated, "weights": weights}, draft)
            draft.replace(FOLDER / "weights.pt")
        time.sleep(PAUSE_SECONDS)


def hang_if_requested() -> None:
    """Do not come to the next collective, if a file with the id of this process exists."""
    letter = FOLDER / f"hang.{os.getpid()}"
    if letter.exists():
        letter.unlink()
        while True:
            time.sleep(0.1)
