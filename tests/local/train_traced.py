"""The reference trainer, with a list of the files of ddp_trainer that one step enters, and digits read one by one."""

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
TRACED_STEP: Final = 5
_entered: Final[set[str]] = set()


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
        _entered.add(frame.f_code.co_filename.removeprefix(PACKAGE))


_step: Final = Trainer.train_step


def _traced(trainer: Trainer) -> bool:
    if trainer.state.step != TRACED_STEP:
        return _step(trainer)
    sys.setprofile(_note)
    try:
        return _step(trainer)
    finally:
        sys.setprofile(None)
        Path(os.environ["TRACE"], f"{os.environ['RANK']}.json").write_text(json.dumps(sorted(_entered)))


if __name__ == "__main__":
    Trainer.train_step = _traced  # type: ignore[method-assign] # to look at one step
    sys.exit(main(sys.argv[1:], recorder=rank_recorder))
