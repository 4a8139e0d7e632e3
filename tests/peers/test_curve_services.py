"""Curves in Weights & Biases and MLflow: real packages with their local stores."""

from __future__ import annotations

import json
import socket
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.train import Config, run
from ddp_trainer.train.observability import remote_logger
from tests.support.launch_harness import wait_until
from tests.support.train_builders import HERE, Lines

JOB = replace(HERE, run_id="first-job")


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give the services all the time they need on a busy machine, and a folder of their own."""
    for limit in ("FLUSH_SECONDS", "LAST_WORDS_SECONDS"):
        monkeypatch.setattr(remote_logger, limit, 240.0)
    monkeypatch.chdir(tmp_path)


def a_config(folder: Path, **changes: Any) -> Config:
    """Return nine steps of three epochs, each saved."""
    values: dict[str, Any] = {"epochs": 3, "global_batch": 4, "warmup_steps": 0, "batch_slices": 1}
    return Config(**{**values, "checkpoint_dir": folder / "c", "checkpoint_steps": 1, "keep": 9, **changes})


class DiesOnce(Lines):
    """Fails at the eighth request for losses."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    def losses(self, model: Any, batch: Any) -> Any:
        self._asked += 1
        if self._asked == 8:
            raise OSError("the machine is lost")
        return super().losses(model, batch)


def train_with_restart(folder: Path, **service: str) -> None:
    """Lose the run after a few steps and two checkpoints, then finish it as another job."""
    with pytest.raises(OSError, match="the machine is lost"):
        run(a_config(folder, **service), DiesOnce(), env=JOB)
    assert run(a_config(folder, **service), Lines(), env=replace(HERE, run_id="second-job")).summary.steps == 9


def records(file: Path) -> Iterator[Any]:
    """Yield the records of a run file of W&B: a header of 7 bytes, then LevelDB's log in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    content, place, total = file.read_bytes(), 7, b""
    while place + 7 <= len(content):
        if (room := 32768 - place % 32768) < 7:
            place += room
            continue
        size, kind = int.from_bytes(content[place + 4 : place + 6], "little"), content[place + 6]
        total += content[place + 7 : place + 7 + size]
        place += 7 + size
        if kind in {1, 4}:  # full, or the last part
            yield Record.FromString(total)
            total = b""


def test_wandb_has_one_run_over_a_restart_by_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="Install kubectl-ddp[wandb].")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    train_with_restart(tmp_path, wandb="curves")
    files = sorted(tmp_path.glob("wandb/offline-run-*/run-*.wandb"), key=lambda file: file.stat().st_mtime)
    assert [file.name for file in files] == ["run-first-job.wandb"] * 2
    # Offline, W&B does not know the last step of the process before, which the checkpoint lacks. Its service may write
    # the last rows after `finish` has returned.
    expected = [list(range(1, 7)), list(range(6, 10))]
    wait_until(lambda: [logged_steps(file) for file in files] == expected, f"{files} have no {expected}")


def logged_steps(file: Path) -> list[int]:
    """Return the steps on the x axis of the training loss, in the order of the file."""
    rows = [
        {item.key or item.nested_key[0]: item.value_json for item in record.history.item} for record in records(file)
    ]
    return [json.loads(row["step"]) for row in rows if "train/loss" in row]


@pytest.mark.filterwarnings("ignore")  # of MLflow's own dependencies, which it imports in this process
def test_mlflow_has_one_run_over_a_restart_by_another_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow", reason="Install kubectl-ddp[mlflow].")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/curves.db")
    train_with_restart(tmp_path, mlflow="curves")
    with sqlite3.connect(tmp_path / "curves.db") as store:
        assert store.execute("select status from runs").fetchall() == [("FINISHED",)]
        for name, steps in (("train/loss", range(1, 10)), ("test/loss", (3, 6, 9))):
            found = store.execute("select step from metrics where key = ? order by step", (name,)).fetchall()
            assert found == [(step,) for step in steps]


@pytest.mark.parametrize("answers", [False, True])
def test_training_succeeds_without_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], *, answers: bool
) -> None:
    """The server refuses connections, or accepts them and never answers."""
    pytest.importorskip("mlflow", reason="Install kubectl-ddp[mlflow].")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    if answers:
        monkeypatch.setattr(remote_logger, "FLUSH_SECONDS", 1.0)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{server.getsockname()[1]}")
        if not answers:
            server.close()
        assert run(a_config(tmp_path, mlflow="curves"), Lines(), env=JOB).summary.steps == 9
    errors = capfd.readouterr().err
    assert errors.count("--mlflow failed, and the run continues without it: ") == 1
    assert ("did not take its last values within 1 s" in errors) is answers
