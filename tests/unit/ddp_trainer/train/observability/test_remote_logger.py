"""Curves for services: which points are sent, to which run, and what happens without the package."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ddp_trainer.train import Config, run
from ddp_trainer.train.observability import remote_logger
from ddp_trainer.train.observability.loggers import changed_options
from ddp_trainer.train.observability.remote_logger import RemoteLogger, Service, new_points
from ddp_trainer.train.utils.errors import BadConfig
from tests.support.launch_harness import wait_until
from tests.support.train_builders import HERE, Lines, lines_config


@pytest.mark.parametrize("service", Service)
def test_a_missing_package_is_named_with_its_extra(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == service else real(name))
    with pytest.raises(BadConfig, match=rf"--{service} needs .* not installed\. Install kubectl-ddp\[{service}\]\."):
        run(lines_config(**{service: "curves"}), Lines(), env=HERE)


def test_the_folder_of_wandb_is_not_taken_for_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("wandb") is not None:
        pytest.skip("wandb is installed")
    (tmp_path / "wandb").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(BadConfig, match=r"Install kubectl-ddp\[wandb\]"):
        run(lines_config(wandb="curves"), Lines(), env=HERE)


def test_repeated_steps_are_dropped_and_the_evaluation_of_the_last_one_is_kept() -> None:
    lines = [{"step": step, "train/loss": 1.0} for step in (4, 5, 6, 5, 6, 7)]
    lines += [{"step": 7, "test/loss": 2.0}, {"step": 6, "test/loss": 3.0}]
    kept = [(point.step, *point.values) for point in new_points(lines, 4)]
    assert kept == [(5, "train/loss"), (6, "train/loss"), (7, "train/loss"), (7, "test/loss")]


def stored_run_id(folder: Path) -> str:
    """Return the id for services in the newest checkpoint."""
    return str(torch.load(max(folder.glob("*/state.pt")), weights_only=True)["logger_run_id"])


def test_a_job_that_resumes_continues_the_run_of_the_first_job(tmp_path: Path) -> None:
    for epochs, job in ((1, "first"), (2, "second")):
        run(lines_config(checkpoint_dir=tmp_path, epochs=epochs), Lines(), env=replace(HERE, run_id=job))
        assert stored_run_id(tmp_path) == "first"


def test_outside_of_kubernetes_each_run_has_its_own_id(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        run(lines_config(checkpoint_dir=tmp_path / folder), Lines(), env=HERE)
    assert stored_run_id(tmp_path / "a") != stored_run_id(tmp_path / "b")


def test_changed_options_are_the_configuration_of_the_run() -> None:
    assert changed_options(Config(seed=3, wandb="curves")) == {"seed": "3", "wandb": "curves"}


WANDB = """
import os, threading

class Settings:
    sync_dir = "here"
    def __init__(self, **_):
        pass

class Run:
    id, url, settings, summary = "r", None, Settings, {}
    def define_metric(self, *_, **__):
        pass
    def log(self, values):
        with open(os.environ["CURVES"], "a") as file:
            print(values["step"], values.get("train/loss"), file=file)
        if "LOG" in os.environ:
            exec(os.environ["LOG"])
    def finish(self, exit_code):
        with open(os.environ["CURVES"], "a") as file:
            print("finished", exit_code, file=file)

def init(**_):
    return Run()
"""
"""The part of Weights & Biases that is used, writing to a file; ``LOG`` is what goes wrong at each value."""


class LoggedRun:
    """A logger of a service, and what it reported."""

    def __init__(self) -> None:
        self.warnings: list[str] = []
        self.notes: list[str] = []
        self.logger = RemoteLogger(Service.WANDB, "curves", {}, warn=self.warnings.append, note=self.notes.append)
        self.logger.begin(0, "run")


@pytest.fixture
def curves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the service on the path of this process, and return its file."""
    (tmp_path / "wandb.py").write_text(WANDB)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setenv("CURVES", str(tmp_path / "curves"))
    return tmp_path / "curves"


@pytest.mark.parametrize(("is_over", "end"), [(True, "finished 0"), (False, "finished 1")])
def test_all_values_are_sent_before_the_end(curves: Path, *, is_over: bool, end: str) -> None:
    service = LoggedRun()
    for step in (1, 2):
        service.logger.write(step, 0, {"train/loss": 0.5})
    service.logger.close(is_over=is_over)
    assert curves.read_text().splitlines() == ["1 0.5", "2 0.5", end]
    assert (service.warnings, service.notes) == ([], ["wandb: run r, offline in here"])


@pytest.mark.parametrize(
    ("log", "why"),
    [
        ("raise ValueError('no such project.')", "no such project."),
        ("threading.Event().wait()", "it did not take its last values within 2 s."),
    ],
    ids=["raises", "hangs"],
)
def test_a_service_that_fails_is_one_warning(curves: Path, monkeypatch: pytest.MonkeyPatch, log: str, why: str) -> None:
    monkeypatch.setenv("LOG", log)
    monkeypatch.setattr(remote_logger, "FLUSH_SECONDS", 2.0 if "wait" in log else 60.0)
    service = LoggedRun()
    for step in (1, 2):
        service.logger.write(step, 0, {"train/loss": 0.5})
    service.logger.close()
    service.logger.write(3, 0, {"train/loss": 0.5})
    service.logger.close()
    assert service.warnings == [f"--wandb failed, and the run continues without it: {why}"]
    assert "finished" not in (curves.read_text() if curves.exists() else "")


def test_a_service_that_is_too_slow_is_dropped(curves: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_logger, "MAX_PENDING_VALUES", 1)
    monkeypatch.setenv("LOG", "threading.Event().wait()")
    service = LoggedRun()
    service.logger.write(1, 0, {"train/loss": 0.5})
    wait_until(curves.exists, "a value")  # so its thread hangs in this test, and takes nothing of the next
    while not service.warnings:
        service.logger.write(1, 0, {"train/loss": 0.5})
    (warning,) = service.warnings
    assert warning == "--wandb failed, and the run continues without it: it has been slower than training for too long."
    assert curves.read_text().splitlines() in ([], ["1 0.5"])  # a file is there before its text
