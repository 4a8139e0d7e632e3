"""A trainer whose data set and recorder keep a log of their own: what was fetched, and what was committed.

The log knows nothing of the plan, the ledger or the vote. One file per process, a line per event: ``F`` with the
sample ids of one fetch, ``C`` with the number of steps committed. Fetches before a ``C`` belong to that step.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TextIO

from torch import Tensor

from ddp_trainer.process.recorder import NoopRankRecorder
from ddp_trainer.train import run
from ddp_trainer.train.cli import parse
from ddp_trainer.train.tasks.digits import Digits, LabeledImages
from ddp_trainer.train.utils.errors import TrainError


class LoggedImages(LabeledImages):
    """Notes every sample that is fetched."""

    def __init__(self, images: LabeledImages, log: TextIO) -> None:
        super().__init__(images.images, images.labels)
        self._log = log

    def batch(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        self._log.write(f"F {' '.join(map(str, ids.tolist()))}\n")
        return super().batch(ids)


class LoggedDigits(Digits):
    """The first 150 training digits, so that an epoch is short."""

    name = "logged-digits"

    def __init__(self, log: TextIO) -> None:
        super().__init__()
        first = LabeledImages(self._train.images[:150], self._train.labels[:150])
        self._train = LoggedImages(first, log)


class CommitLog(NoopRankRecorder):
    """Notes every committed step."""

    def __init__(self, log: TextIO) -> None:
        super().__init__()
        self._log = log

    def step(self, step: int, *_: float) -> None:  # type: ignore[override]
        self._log.write(f"C {step}\n")


def main() -> int:
    generation, rank = os.environ["DDP_GENERATION"], os.environ["RANK"]
    file = Path(os.environ["FETCH_LOG"], f"{int(generation):02}-{rank}")
    # Line-buffered: a killed process has written all it fetched.
    with file.open("w", buffering=1) as log:
        try:
            return run(parse(sys.argv[1:]), LoggedDigits(log), CommitLog(log)).exit_code
        except TrainError as err:
            print(err, file=sys.stderr, flush=True)
            os._exit(err.exit_code)


def surviving_steps(directory: Path) -> dict[int, list[int]]:
    """Step → sample ids that all ranks fetched for it, of the last generation that committed the step."""
    steps: dict[int, tuple[int, list[int]]] = {}
    for file in sorted(directory.iterdir()):
        generation = int(file.name.split("-")[0])
        fetched: list[int] = []
        for line in file.read_text().splitlines():
            kind, *numbers = line.split()
            if kind == "F":
                fetched += map(int, numbers)
                continue
            step = int(numbers[0])
            latest, ids = steps.get(step, (generation, []))
            steps[step] = (generation, ids + fetched if latest == generation else fetched)
            fetched = []
    return {step: ids for step, (_, ids) in steps.items()}


if __name__ == "__main__":
    sys.exit(main())
