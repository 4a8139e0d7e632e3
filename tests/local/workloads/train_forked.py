"""Runs of the trainer one after the other, each on as many ranks as its layout has, with the metrics of every rank."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tests.local.workloads.train_group import WorkerGroup

PROGRAM = """
import sys
from ddp_trainer.metrics.attach import rank_recorder
from ddp_trainer.train.cli import main
from ddp_trainer.train.transforms import precision
precision._cpu_has_fp16 = lambda: True  # where the processor has none, torch imitates it
sys.exit(main(sys.argv[1:], recorder=rank_recorder))
"""

FLAGS = (
    *("--task", "tests.local.workloads.train_layouts:Numbers", "--log-steps", "1", "--threads", "1", "--device", "cpu"),
    *("--global-batch", "8", "--batch-slices", "2", "--learning-rate", "0.001", "--warmup-steps", "0"),
    *("--schedule", "constant", "--clip-norm", "0.5", "--checkpoint-seconds", "inf"),
)


class Run(NamedTuple):
    """One run."""

    world: int
    flags: Sequence[str]


def run(*flags: str) -> Run:
    """A run with :data:`FLAGS` and these, on as many ranks as ``--parallel`` makes, if it is given."""
    layout = dict(pairwise(flags)).get("--parallel", "")
    return Run(math.prod(map(int, re.findall(r"=(\d+)", layout))), [*FLAGS, *flags])


def events_of(directory: Path, *runs: Run, env: Mapping[str, str] | None = None) -> list[list[dict[str, Any]]]:
    """Events of rank 0 in each run. All runs must succeed."""
    found = []
    for number, (world, flags) in enumerate(runs):
        place = directory / f"run-{number}"
        place.mkdir()
        with WorkerGroup(world, flags, directory=place, program=("-c", PROGRAM), generation=number, env=env) as group:
            found.append(list(group.events()))
            assert group.finish() == [0] * world, f"{flags}: {group.stderr()}"
    return found


def losses_of(directory: Path, *runs: Run, env: Mapping[str, str] | None = None) -> list[list[float]]:
    """Losses of the steps of each run."""
    every = events_of(directory, *runs, env=env)
    return [[event["loss"] for event in events if event["event"] == "step"] for events in every]
