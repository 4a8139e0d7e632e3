"""The table of lost and repeated samples, and the clock of the loops that are compared."""

from __future__ import annotations

import pytest
import torch

from bench._samplers import SAMPLES, account, ours, torch_sampler
from bench._workload import WORKLOADS, Clock, Timed, mean_loss
from bench.samples import COLUMNS


def test_an_account_tells_lost_from_repeated() -> None:
    read = [*range(SAMPLES - 3), 0, 0, 1]
    assert account(read) == (3, 3)


@pytest.mark.parametrize("column", ["global_batch_kept", "uneven"])
def test_ours_reads_every_sample_once_however_the_world_shrinks(column: str) -> None:
    assert account(ours(COLUMNS[column])) == (0, 0)


def test_a_sampler_that_counts_steps_repeats_samples_once_the_batch_follows_the_world() -> None:
    assert account(torch_sampler(COLUMNS["global_batch_kept"])) == (0, 0)
    assert account(torch_sampler(COLUMNS["rank_batch_kept"])) == (0, 240)


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
