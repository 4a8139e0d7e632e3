"""Running statistics over batch slices, skipped steps and ranks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from ddp_trainer.train.exact.buffer_sync import FirstRanksBuffers, SharedBuffers
from tests.support.train_builders import ALONE


@pytest.mark.parametrize("kind", [SharedBuffers, FirstRanksBuffers])
def test_a_skipped_step_leaves_running_statistics_where_they_were(kind: type[SharedBuffers]) -> None:
    model = nn.BatchNorm1d(2)
    buffers = kind(model, ALONE)
    model(torch.tensor([[float("nan"), 1.0], [2.0, 3.0]]))
    buffers.slice_done()
    buffers.discard()
    assert model.running_mean is not None
    assert model.running_mean.tolist() == [0.0, 0.0]
    model(torch.tensor([[10.0, 10.0], [10.0, 10.0]]))
    buffers.slice_done()
    buffers.gather()
    buffers.commit()
    assert model.running_mean.tolist() == pytest.approx([1.0, 1.0])


def test_rank_0s_buffers_pass_from_slice_to_slice() -> None:
    model = nn.BatchNorm1d(1)
    buffers = FirstRanksBuffers(model, ALONE)
    for value in (10.0, 20.0):
        model(torch.full((2, 1), value))
        buffers.slice_done()
    buffers.gather()
    buffers.commit()
    assert model.running_mean is not None
    assert model.running_mean.item() == pytest.approx(0.9 * 1.0 + 2.0)
    assert model.num_batches_tracked == 2


def test_running_statistics_do_not_depend_on_the_order_of_slices() -> None:
    batch_slices = [torch.randn(4, 3) + shift for shift in (0.0, 5.0)]
    moved = []
    for order in (batch_slices, batch_slices[::-1]):
        model = nn.BatchNorm1d(3)
        buffers = SharedBuffers(model, ALONE)
        for batch_slice in order:
            model(batch_slice)
            buffers.slice_done()
        buffers.gather()
        buffers.commit()
        moved.append(model)
    assert torch.allclose(moved[0].running_mean, moved[1].running_mean)  # type: ignore[arg-type]
    expected = 0.1 * (batch_slices[0].mean(0) + batch_slices[1].mean(0)) / 2
    assert torch.allclose(moved[0].running_mean, expected, atol=1e-6)  # type: ignore[arg-type]
    assert moved[0].num_batches_tracked == 1


def test_statistics_go_on_from_loaded_buffers() -> None:
    model = nn.BatchNorm1d(2)
    buffers = SharedBuffers(model, ALONE)
    model.running_mean.fill_(3.0)  # type: ignore[union-attr]
    buffers.restart()
    buffers.gather()
    buffers.commit()
    assert model.running_mean.tolist() == [3.0, 3.0]  # type: ignore[union-attr]
