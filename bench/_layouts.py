"""What ``bench parallel`` learns: a small GPT on rows of numbers, cut by its own plan and by one that is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from ddp_trainer.train.models.gpt import Gpt
from ddp_trainer.train.task import rowwise

VOCABULARY: Final = 32
WINDOW: Final = 16


class Rows:
    """Rows in which each number follows from the one before."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        return self.batch(torch.tensor([index]))[0]

    @rowwise
    def batch(self, ids: Tensor) -> Tensor:
        """Int64 ``(n, window + 1)``."""
        rows = [(ids + ids // VOCABULARY) % VOCABULARY]
        for _ in range(WINDOW):
            rows.append((rows[-1] * 5 + 3) % VOCABULARY)
        return torch.stack(rows, 1)


class Numbers:
    """Foretell the next number."""

    name = "numbers"

    def model(self) -> nn.Module:
        """Four layers, so that two ranks may have two stages each."""
        return Gpt(vocabulary=VOCABULARY, window=WINDOW, layers=4, heads=4, width=32)

    def train_samples(self) -> Rows:
        """Not a multiple of the global batch: the last step of an epoch is a partial one."""
        return Rows(203)

    def test_samples(self) -> Rows:
        """A few."""
        return Rows(5)

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        """Mean cross entropy of each row."""
        logits = model(batch[:, :-1])
        return nn.functional.cross_entropy(logits.transpose(1, 2), batch[:, 1:], reduction="none").mean(1)

    def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        """The loss, and how many numbers were foretold."""
        found = model(batch[:, :-1]).argmax(2) == batch[:, 1:]
        return {"loss": self.losses(model, batch).sum(), "accuracy": found.double().mean(1).sum()}


class WronglyCut(Numbers):
    """The perceptrons cut, and what their halves give never added up: no error, and no model either."""

    def tp_plan(self, model: nn.Module) -> Mapping[str, Any]:
        """What each rank has a part of, is taken for the whole."""
        from torch.distributed.tensor import Partial
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        del model
        return {"blocks.*.mlp.hidden": ColwiseParallel(), "blocks.*.mlp.out": RowwiseParallel(output_layouts=Partial())}
