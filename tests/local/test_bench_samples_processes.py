"""The table of lost and repeated samples is filled by real ranks, one of which is killed at each resize."""

from __future__ import annotations

from pathlib import Path

from bench.measurements.samples import COLUMNS
from bench.workloads.elastic_epoch import account, read_epoch, server
from bench.workloads.sample_loops import reference_trainer


def test_an_epoch_of_three_worlds_with_a_batch_that_three_ranks_cannot_share(tmp_path: Path) -> None:
    context = server(["torch", "ddp_trainer.train.elastic_loop"])
    assert account(read_epoch(context, reference_trainer, COLUMNS["uneven"], tmp_path, dies=True)) == (0, 0)
