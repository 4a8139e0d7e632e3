"""A trainer that logs the samples of each committed step as :mod:`tests.local.workloads.train_reformed` does."""

from __future__ import annotations

import os
import sys
from typing import TextIO

from torch import Tensor

from ddp_trainer.process.recorder import NoopRankRecorder
from ddp_trainer.train import run
from ddp_trainer.train.cli import parse
from ddp_trainer.train.utils.errors import TrainError
from ddp_workloads.digits import Digits, LabeledImages
from tests.local.workloads.train_reformed import SAMPLES, logging


class LoggedImages(LabeledImages):
    """Notes every sample that is fetched."""

    def __init__(self, images: LabeledImages) -> None:
        super().__init__(images.images[:SAMPLES], images.labels[:SAMPLES])
        self.fetched: list[int] = []

    def batch(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        self.fetched += ids.tolist()
        return super().batch(ids)


class LoggedDigits(Digits):
    """The first training digits, so that an epoch is short."""

    name = "logged-digits"

    def __init__(self) -> None:
        super().__init__()
        self.train = self._train = LoggedImages(self._train)


class CommitLog(NoopRankRecorder):
    """Writes the samples of every committed step."""

    def __init__(self, fetched: list[int], log: TextIO) -> None:
        super().__init__()
        self._fetched, self._log = fetched, log

    def step(self, step: int, *_: float) -> None:  # type: ignore[override]
        lines = [f"S {os.environ['DDP_GENERATION']} {step - 1}", *(f"F {number}" for number in self._fetched)]
        self._log.write("\n".join([*lines, ""]))
        self._fetched.clear()


def main() -> int:
    task = LoggedDigits()
    with logging() as log:
        try:
            return run(parse(sys.argv[1:]), task, CommitLog(task.train.fetched, log)).exit_code
        except TrainError as err:
            print(err, file=sys.stderr, flush=True)
            os._exit(err.exit_code)


if __name__ == "__main__":
    sys.exit(main())
