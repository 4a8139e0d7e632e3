"""From sample ids to a batch on the device."""

from __future__ import annotations

from collections import namedtuple

import torch

from ddp_trainer.train.data.batch_reader import reader, to_device

Pair = namedtuple("Pair", "x y")  # noqa: PYI024 - what users hand over need not be typed


def test_every_kind_of_batch_reaches_the_device() -> None:
    batch = {"a": (torch.ones(1), [torch.ones(1)]), "b": Pair(torch.ones(1), "text")}
    moved = to_device(batch, torch.device("meta"))
    assert moved["a"][0].device.type == moved["a"][1][0].device.type == moved["b"].x.device.type == "meta"
    assert moved["b"].y == "text"


def test_the_fastest_way_to_fetch_is_taken() -> None:
    class Single:
        def __len__(self) -> int:
            return 5

        def __getitem__(self, index: int) -> int:
            return index * 10

    class Many(Single):
        def __getitems__(self, ids: list[int]) -> list[int]:
            return [index * 100 for index in ids]

    ids = torch.tensor([3, 1])
    assert reader(Single())(ids).tolist() == [30, 10]
    assert reader(Many())(ids).tolist() == [300, 100]
