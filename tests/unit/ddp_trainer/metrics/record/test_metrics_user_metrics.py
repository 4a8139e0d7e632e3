"""Values that a script logs."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ddp_trainer.common.constants import Env
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.metrics import attach
from ddp_trainer.metrics.record import suppress_errors
from ddp_trainer.metrics.record.user_metrics import Log
from ddp_trainer.metrics.serve.collector import Exposition
from ddp_trainer.metrics.storage.mmap_directory import rank_metrics_path
from ddp_trainer.metrics.storage.mmap_store import RANK, read
from ddp_trainer.metrics.storage.user_values import UserValues
from tests.support.metrics_processes import rank_variables


@pytest.fixture(autouse=True)
def no_earlier_warnings() -> None:
    suppress_errors._warned.clear()


def board_values(directory: Path) -> dict[str, float]:
    return read(rank_metrics_path(directory, 0), RANK).values


def test_values_are_recorded_and_work_adds_up(tmp_path: Path) -> None:
    log = attach.log({Env.METRICS_DIR: str(tmp_path)})
    for loss in (torch.tensor(2.0, requires_grad=True), torch.tensor([1.5])):
        log(loss=loss, tokens=1024, flops=1e9, gradient_norm=torch.tensor(3.0), learning_rate=0.1)
    values = board_values(tmp_path)
    assert (values[Metric.LOSS], values[Metric.GRADIENT_NORM], values[Metric.LEARNING_RATE]) == (1.5, 3.0, 0.1)
    assert (values[Metric.TOKENS], values[Metric.MODEL_FLOPS]) == (2048, 2e9)
    assert values[Metric.STEPS] == 0, "log() counts no steps"


def test_a_tensor_with_a_gradient_is_recorded_without_a_warning(tmp_path: Path) -> None:
    weight = torch.tensor(2.0, requires_grad=True)
    torch.set_warn_always(True)  # otherwise torch warns once per process
    try:
        attach.log({Env.METRICS_DIR: str(tmp_path)}, loss=weight, gradient_norm=weight, penalty=weight)
    finally:
        torch.set_warn_always(False)
    values = board_values(tmp_path)
    assert (values[Metric.LOSS], values[Metric.GRADIENT_NORM], exported(tmp_path)) == (2.0, 2.0, {"penalty": 2.0})


@pytest.mark.parametrize(
    "nonsense", [{"loss": "low"}, {"loss": torch.ones(2)}, {"tokens": object()}], ids=["text", "two", "object"]
)
def test_nonsense_costs_a_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture, nonsense: dict[str, Any]) -> None:
    log = attach.log({Env.METRICS_DIR: str(tmp_path)})
    log(**nonsense)
    log(**nonsense)
    (record,) = caplog.records
    assert record.getMessage().startswith("metrics: log is not recorded (")


def exported(directory: Path, rank: int = 0) -> dict[str, float]:
    """Return the script's own values of a rank, from a scrape."""
    families = {family.name: family for family in Exposition(directory, "digits", directory).collect()}
    found = families.get("ddp_user_value")
    samples = found.samples if found else ()
    return {sample.labels["name"]: sample.value for sample in samples if sample.labels["rank"] == str(rank)}


def test_one_line_reports_values_and_every_call_returns_the_same_log(tmp_path: Path) -> None:
    here = {Env.METRICS_DIR: str(tmp_path)}
    log = attach.log(here, loss=0.5, val_accuracy=0.93)
    assert board_values(tmp_path)[Metric.LOSS] == 0.5
    assert exported(tmp_path) == {"val_accuracy": 0.93}
    assert attach.log(here, environment=2.0) is log, "any name may be that of a value"
    assert exported(tmp_path) == {"val_accuracy": 0.93, "environment": 2.0}


def test_a_value_that_is_not_finite_is_exported_as_it_is(tmp_path: Path) -> None:
    attach.log({Env.METRICS_DIR: str(tmp_path)}, best=math.inf, val_loss=torch.tensor(math.nan))
    found = exported(tmp_path)
    assert found["best"] == math.inf
    assert math.isnan(found["val_loss"])


def test_a_value_that_is_no_number_costs_a_warning_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        attach.log({Env.METRICS_DIR: str(tmp_path)}, two=torch.ones(2), text="high", huge=10**400, good=1)
    values = [record.getMessage().split(" is not")[0] for record in caplog.records]
    assert values == [f"metrics: the value '{name}'" for name in ("two", "text", "huge")]
    assert exported(tmp_path) == {"good": 1.0}


@pytest.mark.parametrize("is_first", [True, False])
def test_a_loss_that_a_recorder_reports_is_that_of_the_job(tmp_path: Path, *, is_first: bool) -> None:
    here = {Env.METRICS_DIR: str(tmp_path)}
    if is_first:
        attach.log(here, loss=9.0)
        assert board_values(tmp_path)[Metric.LOSS] == 9.0
    attach.rank_recorder(here).progress(0.5, 0.1)
    attach.log(here, loss=9.0, val_accuracy=0.93)
    assert board_values(tmp_path)[Metric.LOSS] == 0.5
    assert exported(tmp_path) == {"val_accuracy": 0.93}


@pytest.mark.parametrize("has_launcher", [True, False])
def test_a_recorder_of_the_process_takes_each_value_once(tmp_path: Path, *, has_launcher: bool) -> None:
    here = {Env.METRICS_DIR: str(tmp_path)} if has_launcher else {}
    recorder = attach.rank_recorder(here)
    recorder.take_user_values()
    attach.log(here, val_accuracy=0.5)
    attach.log(here, val_accuracy=0.75, f1=0.25)
    assert recorder.take_user_values() == {"val_accuracy": 0.75, "f1": 0.25}
    assert recorder.take_user_values() == {}


def test_a_fork_leaves_the_values_to_its_parent(tmp_path: Path) -> None:
    log = attach.log({Env.METRICS_DIR: str(tmp_path)}, val_accuracy=0.5)
    child = os.fork()
    if not child:
        try:
            log(val_accuracy=0.1)
            log._own.flush()
            attach.log({Env.METRICS_DIR: str(tmp_path)}, val_accuracy=0.2)._own.flush()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert exported(tmp_path) == {"val_accuracy": 0.5}


def test_values_with_names_of_their_own_are_exported_of_each_rank(tmp_path: Path) -> None:
    now = [0.0]
    log = attach.log({Env.METRICS_DIR: str(tmp_path), "LOCAL_WORLD_SIZE": "2"})
    log._own._clock = lambda: now[0]
    log(loss=1.0, val_accuracy=0.5, extra={"val/top5": torch.tensor(0.75)})
    assert exported(tmp_path) == {"val_accuracy": 0.5, "val/top5": 0.75}
    log(val_accuracy=0.6)
    assert exported(tmp_path)["val_accuracy"] == 0.5, "the file is not written at each step"
    log(extra={"val/top5": 0.75, "once_per_epoch": 1.0})
    assert exported(tmp_path)["once_per_epoch"] == 1.0, "a name that is reported rarely is written immediately"
    log(val_accuracy=0.6)
    log._own.flush()
    assert exported(tmp_path)["val_accuracy"] == 0.6
    now[0] = 1.5
    log(val_accuracy=0.7)
    assert exported(tmp_path)["val_accuracy"] == 0.7
    restarted = UserValues(rank_metrics_path(tmp_path, 0).with_suffix(".values"))
    restarted.put("f1", 0.25)
    restarted.flush()
    assert [*exported(tmp_path)] == ["val_accuracy", "val/top5", "once_per_epoch", "f1"], "a restarted worker continues"
    attach.log(rank_variables(tmp_path, 1, of=2), mine=1.0)
    assert exported(tmp_path, rank=1) == {"mine": 1.0}
    assert "mine" not in exported(tmp_path)


@pytest.mark.parametrize("name", ["", "1st", "a" * 49, "a b", 'a"b', "größe", "a\nb", "a{b}"])
def test_a_wrong_name_is_refused_once(tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str) -> None:
    log = attach.log({Env.METRICS_DIR: str(tmp_path)})
    log(extra={name: 1.0, "good": 2.0})
    log(extra={name: 1.0})
    (record,) = caplog.records
    assert "begins with a letter" in record.getMessage()
    assert exported(tmp_path) == {"good": 2.0}


def test_a_rank_has_32_names_whatever_the_file_holds(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = attach.log({Env.METRICS_DIR: str(tmp_path)})
    log(extra={f"n{number}": number for number in range(40)})
    log(extra={f"step {number}": number for number in range(40)})
    assert len(exported(tmp_path)) == 32
    first, second = (record.getMessage() for record in caplog.records)
    assert first.startswith("metrics: a further value is not recorded ('n32': 32 names are in use")
    assert second.startswith("metrics: a value is not recorded ('step 0': a name has up to 48 letters")
    file = rank_metrics_path(tmp_path, 0).with_suffix(".values")
    for text in ("", "[1]", '{"a": "x", "b c": 1, "d": 2}', "{" * 9000, "[" * 8000, f'{{"d": {10**400}}}'):
        file.write_text(text)
        assert set(exported(tmp_path)) <= {"d"}
    file.write_text(json.dumps({f"n{number}": number for number in range(40)}))
    assert len(exported(tmp_path)) == 32


class OnGpu:
    """A loss on a device that runs asynchronously."""

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
    assert Metric.LOSS not in board_values(tmp_path)
    loss.is_there = True
    log(loss=loss)
    assert board_values(tmp_path)[Metric.LOSS] == 0.5
    log(loss=loss)
    assert copies == [loss], "once a second is enough"
