"""Survivors of their groups: a task whose steps are slow until a file exists, and a hand-written loop.

Both note every sample that is fetched, in a file per process: ``S generation step`` before the samples of a step,
``F sample`` for each. The log knows nothing of plan, ledger or vote.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any, TextIO

import torch
from torch import Tensor, nn

from ddp_trainer import elastic
from ddp_workloads.digits import LabeledImages
from tests.local.workloads.train_bits import SmallDigits

SAMPLES = 150
BATCH = 8
EPOCHS = 12
STEPS_PER_EPOCH = -(-SAMPLES // BATCH)
"""The last one is smaller."""
PAUSE_SECONDS = 0.2


def dawdle() -> None:
    """Leave a test the time to disturb, until it has."""
    if not Path(os.environ["HURRY"]).exists():
        time.sleep(float(os.environ.get("PAUSE", PAUSE_SECONDS)))


class SlowImages(LabeledImages):
    """Read slowly."""

    def batch(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        dawdle()
        return super().batch(ids)


class SlowDigits(SmallDigits):
    """As :class:`SmallDigits`."""

    def __init__(self) -> None:
        super().__init__()
        self._train = SlowImages(self._train.images, self._train.labels)


class Logged(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Points of a line."""

    def __init__(self, log: TextIO) -> None:
        self._log = log
        self.is_asked = False

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.is_asked:
            self._log.write(f"F {index}\n")
        x = torch.tensor([index / SAMPLES, 1 - index / SAMPLES])
        return x, x.sum() * 2


def logging() -> TextIO:
    """Return the log of this process, line-buffered, so that a killed process has written all it fetched."""
    return Path(os.environ["FETCH_LOG"], str(os.getpid())).open("a", buffering=1)


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 8, bias=False), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    options: dict[str, Any] = {
        "scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9),
        "clip_norm": 5.0,
        "epochs": int(os.environ.get("EPOCHS", EPOCHS)),
        "checkpoint_steps": int(os.environ.get("SAVE_STEPS", "0")) or None,
    }
    with logging() as log:
        data = Logged(log)
        with elastic.run(model, optimizer, data, global_batch=BATCH, batch_slices=3, **options) as job:
            data.is_asked = True
            for step in job:
                dawdle()
                log.write(f"S {os.environ['DDP_GENERATION']} {step.number}\n")
                place = {"pid": os.getpid(), "world": job.world_size, "step": step.number}
                print(json.dumps({"event": "step", **place}), flush=True)
                for inputs, targets in step:
                    step.backward((model(inputs).squeeze(1) - targets).square().mean())
        if job.rank == 0:
            print(json.dumps({"event": "summary", "summary": job.summary.to_dict()}), flush=True)


def demand_every_sample_once(directory: Path, epochs: int) -> None:
    steps = samples_of_steps(directory)
    assert sorted(steps) == list(range(epochs * STEPS_PER_EPOCH))
    for first in range(0, epochs * STEPS_PER_EPOCH, STEPS_PER_EPOCH):
        counts = Counter(sample for step in range(first, first + STEPS_PER_EPOCH) for sample in steps[step])
        assert counts == dict.fromkeys(range(SAMPLES), 1)


def samples_of_steps(directory: Path) -> dict[int, list[int]]:
    """Step → samples that all processes fetched for it in the last generation that attempted it."""
    attempts: dict[int, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    for file in directory.iterdir():
        place = (-1, -1)
        for line in file.read_text().splitlines():
            kind, *numbers = line.split()
            if kind == "S":
                place = (int(numbers[1]), int(numbers[0]))
            else:
                attempts[place[0]][place[1]].append(int(numbers[0]))
    return {step: sorted(of[max(of)]) for step, of in attempts.items()}


if __name__ == "__main__":
    sys.exit(main())
