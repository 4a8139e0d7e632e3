"""The reference trainer, with a list of the files of ddp_trainer that every step enters, and digits read one by one."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any, Final

import ddp_trainer
from ddp_trainer.metrics.attach import rank_recorder
from ddp_trainer.train.cli import main
from ddp_trainer.train.tasks.digits import Digits, LabeledImages
from ddp_trainer.train.trainer import Trainer

PACKAGE: Final = f"{Path(ddp_trainer.__file__).parent}{os.sep}"
TRACED_STEPS: Final = range(5, 11)
"""Several, since what happens at intervals of time falls into any step, but not into all of them."""
_entered: Final[list[set[str]]] = []


class _Single:
    """Images that are read one at a time, as those of most data sets."""

    def __init__(self, images: LabeledImages) -> None:
        self._images = images

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> Any:
        return self._images[index]


class SingleDigits(Digits):
    """Digits without a way to read many at once."""

    def train_samples(self) -> _Single:  # type: ignore[override] # another kind of samples
        return _Single(self._train)


def _note(frame: FrameType, event: str, _: object) -> None:
    if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
        _entered[-1].add(frame.f_code.co_filename.removeprefix(PACKAGE))


_step: Final = Trainer.train_step


def _traced(trainer: Trainer) -> bool:
    if trainer.state.step not in TRACED_STEPS:
        return _step(trainer)
    _entered.append(set())
    sys.setprofile(_note)
    try:
        return _step(trainer)
    finally:
        sys.setprofile(None)
        in_all = sorted(set.intersection(*_entered))
        Path(os.environ["TRACE"], f"{os.environ['RANK']}.json").write_text(json.dumps(in_all))


if __name__ == "__main__":
    Trainer.train_step = _traced  # type: ignore[method-assign] # to look at steps
    sys.exit(main(sys.argv[1:], recorder=rank_recorder))
