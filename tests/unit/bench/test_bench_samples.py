"""The table of lost and repeated samples, and the clock of the loops that are compared."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from bench.workloads.elastic_epoch import SAMPLES, account, committed_samples
from bench.workloads.overhead_workload import WORKLOADS, Clock, Timed, mean_loss


def test_an_account_tells_lost_from_repeated() -> None:
    assert account([*range(SAMPLES - 3), 0, 0, 1]) == (3, 3)


def test_of_a_step_that_was_done_again_the_last_group_counts(tmp_path: Path) -> None:
    (tmp_path / "00-0").write_text("R 1 2\nC 1\nR 3\nR 4\nC 2\nR 5\n")
    (tmp_path / "00-1").write_text("R 6\nC 1\nR 7\nC 2\n")
    (tmp_path / "01-0").write_text("R 3 7\nC 2\n")
    assert sorted(committed_samples(tmp_path)) == [1, 2, 3, 6, 7]


def test_a_clock_times_the_steps_after_the_warm_up_and_refuses_a_loop_that_took_others() -> None:
    clock = Clock(warmup=2, steps=3)
    work = WORKLOADS["tiny"]
    model = Timed(work, clock)
    inputs, labels = work.samples(8)
    for _ in range(5):
        assert torch.isfinite(mean_loss(model, (inputs, labels)))
    with pytest.raises(RuntimeError, match="5 forward passes where 6"):
        clock.result()
    mean_loss(model, (inputs, labels))
    assert set(clock.result()) == {"mean", "median", "processor"}
    assert min(clock.result().values()) > 0
