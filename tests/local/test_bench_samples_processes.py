"""The table of lost and repeated samples tells ours from a sampler that counts steps, with real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench._reading import Arm, account, read_epoch, server
from bench._samplers import ours, torch_sampler
from bench.samples import COLUMNS

SERVED = ("torch", "torch._dynamo", "ddp_trainer.train.own_loop")
"""What plain torch would import in every rank anew, too."""


@pytest.mark.parametrize(
    ("arm", "column", "found"),
    [
        (ours, "uneven", (0, 0)),
        (torch_sampler, "rank_batch_kept", (0, 240)),
    ],
)
def test_an_epoch_of_three_worlds(arm: Arm, column: str, found: tuple[int, int], tmp_path: Path) -> None:
    assert account(read_epoch(server(SERVED), arm, COLUMNS[column], tmp_path, dies=arm is ours)) == found
