"""A batch is cut into micro-batches, or refused."""

from __future__ import annotations

from collections import namedtuple

import pytest
import torch

from ddp_trainer.train.data.batch_reader import micro_batches
from ddp_trainer.train.utils.errors import BadTask


def test_micro_batches_are_pieces_of_the_batch_in_order() -> None:
    pair = namedtuple("pair", "x y")  # noqa: PYI024 - what users hand over need not be typed
    batch = {"a": torch.arange(5), "b": [torch.arange(5), ("p", "q", "r", "s", "t")], "c": pair(torch.ones(5, 2), 0)}
    batch["c"] = pair(torch.ones(5, 2), torch.arange(5))
    pieces = list(micro_batches(batch, 5, 2))
    assert [piece["a"].tolist() for piece in pieces] == [[0, 1], [2, 3], [4]]
    assert [piece["b"][1] for piece in pieces] == [("p", "q"), ("r", "s"), ("t",)]
    assert [piece["c"].x.shape[0] for piece in pieces] == [2, 2, 1]
    assert list(micro_batches(batch, 5, 5)) == [batch]


@pytest.mark.parametrize("batch", [torch.ones(3), (torch.ones(5), 7), {"a": torch.ones(4)}])
def test_a_batch_that_cannot_be_cut_is_refused(batch: object) -> None:
    with pytest.raises(BadTask, match="--micro-batch cuts a batch of 5 samples"):
        list(micro_batches(batch, 5, 2))
