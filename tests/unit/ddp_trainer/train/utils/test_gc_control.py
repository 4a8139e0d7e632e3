"""Garbage collection at the steps that --gc-steps names."""

from __future__ import annotations

import gc

from torch import Tensor, nn

from ddp_trainer.train import run
from ddp_trainer.train.config.config import Config
from ddp_trainer.train.trainer import manual_gc
from tests.support.train_builders import HERE, Lines


class CollectionCounter(Lines):
    """A task that records the number of collections at each pass."""

    def __init__(self) -> None:
        super().__init__()
        self.collections = 0
        self.at_steps: list[int] = []

    def count(self, phase: str, _: object) -> None:
        self.collections += phase == "start"

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        self.at_steps.append(self.collections)
        return super().losses(model, batch)


def test_garbage_is_collected_when_told_and_at_no_other_time() -> None:
    task = CollectionCounter()
    gc.callbacks.append(task.count)
    try:
        run(Config(max_steps=7, global_batch=1, batch_slices=1, gc_steps=3), task, env=HERE)
    finally:
        gc.callbacks.remove(task.count)
    training = task.at_steps[:7]
    assert [count - training[0] for count in training] == [0, 0, 0, 1, 1, 1, 2]
    assert gc.isenabled()
    with manual_gc(None):
        assert gc.isenabled()
