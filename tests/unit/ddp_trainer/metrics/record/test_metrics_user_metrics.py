"""What only a script knows of its steps."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.common.constants import Env
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.metrics import attach
from ddp_trainer.metrics.record import suppress_errors
from ddp_trainer.metrics.record.user_metrics import Log
from ddp_trainer.metrics.storage.mmap_directory import rank_board_path
from ddp_trainer.metrics.storage.mmap_store import RANK, read


def told(directory: Path) -> dict[str, float]:
    return read(rank_board_path(directory, 0), RANK).values


def test_what_is_told_arrives_and_work_adds_up(tmp_path: Path) -> None:
    log = attach.log({Env.METRICS_DIR: str(tmp_path)})
    for loss in (torch.tensor(2.0, requires_grad=True), torch.tensor([1.5])):
        log(loss=loss, tokens=1024, flops=1e9, gradient_norm=torch.tensor(3.0), learning_rate=0.1)
    values = told(tmp_path)
    assert (values[Metric.LOSS], values[Metric.GRADIENT_NORM], values[Metric.LEARNING_RATE]) == (1.5, 3.0, 0.1)
    assert (values[Metric.TOKENS], values[Metric.MODEL_FLOPS]) == (2048, 2e9)
    assert values[Metric.STEPS] == 0, "they are counted by whom sees them"


def test_what_is_not_told_stays_absent(tmp_path: Path) -> None:
    attach.log({Env.METRICS_DIR: str(tmp_path)})(tokens=1)
    assert not {Metric.LOSS, Metric.GRADIENT_NORM, Metric.LEARNING_RATE} & set(told(tmp_path))


def test_without_a_launcher_nothing_happens() -> None:
    attach.log({})(loss=1.0, tokens=1)


@pytest.mark.parametrize(
    "nonsense", [{"loss": "low"}, {"loss": torch.ones(2)}, {"tokens": object()}], ids=["text", "two", "object"]
)
def test_nonsense_is_warned_of_and_never_raised(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, nonsense: dict[str, Any]
) -> None:
    suppress_errors._warned.clear()
    log = attach.log({Env.METRICS_DIR: str(tmp_path)})
    with caplog.at_level(logging.WARNING):
        log(**nonsense)
        log(**nonsense)
    (record,) = caplog.records
    assert record.getMessage().startswith("metrics: log is not recorded (")


class OnGpu:
    """A loss on a device that works behind its host."""

    is_cuda = True

    def __init__(self) -> None:
        self.is_there = False

    def query(self) -> bool:
        return self.is_there

    def __float__(self) -> float:
        assert self.is_there, "the host would have waited for the device"
        return 0.5


def test_a_loss_on_a_gpu_is_told_when_it_has_arrived(tmp_path: Path) -> None:
    loss, copies = OnGpu(), []

    def fetch(number: OnGpu) -> tuple[OnGpu, OnGpu]:
        copies.append(number)
        return number, number

    log = Log(attach.rank_recorder({Env.METRICS_DIR: str(tmp_path)}), fetch=fetch)
    log(loss=loss)
    log(loss=loss)
    assert Metric.LOSS not in told(tmp_path)
    loss.is_there = True
    log(loss=loss)
    assert told(tmp_path)[Metric.LOSS] == 0.5
    log(loss=loss)
    assert copies == [loss], "once a second is enough"
