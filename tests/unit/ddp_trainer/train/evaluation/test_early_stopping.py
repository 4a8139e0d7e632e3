"""Evaluation, best checkpoint, early stop and reports, with and without a restart."""

from __future__ import annotations

import csv
import json
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.trainer_options import PrecisionName
from ddp_trainer.metrics import attach
from ddp_trainer.train import Config, run
from ddp_trainer.train.checkpoint.checkpoint_manager import best_interval, suggest_interval
from ddp_trainer.train.config.option_values import EarlyStop, OnNonfinite, ProfileWindow
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.utils.errors import BadConfig
from tests.support.train_builders import HERE, Killed, Lines, Points, kill_after, lines_config


def a_config(**changes: object) -> Config:
    return lines_config(**{"epochs": 8, "batch_slices": 1, "checkpoint_seconds": None, **changes})


class Scripted(Lines):
    """A task with given accuracies, one per evaluation."""

    def __init__(self, *accuracies: float, die_before: int | None = None) -> None:
        super().__init__()
        self._script: Iterator[tuple[int, float]] = iter(enumerate(accuracies))
        self._die_before = die_before

    def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        number, accuracy = next(self._script)
        if number == self._die_before:
            raise KeyboardInterrupt
        return {"accuracy": torch.tensor(accuracy * len(batch))}


def test_a_run_ends_when_its_metric_no_longer_becomes_better(tmp_path: Path) -> None:
    config = a_config(early_stop=EarlyStop("accuracy", 2), keep_best="accuracy", checkpoint_dir=tmp_path, keep=1)
    summary = run(config, Scripted(0.1, 0.5, 0.4, 0.5), env=HERE).summary
    assert (summary.steps, summary.stopped_early) == (12, True)
    assert summary.best == {"metric": "accuracy", "value": pytest.approx(0.5), "step": 6}
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000006", "step-00000012"]
    assert run(config, Scripted(), env=HERE).summary == summary


def test_a_restart_waits_no_longer_for_a_better_metric_than_a_whole_run(tmp_path: Path) -> None:
    script = (0.1, 0.5, 0.4, 0.3, 0.2)
    config = a_config(early_stop=EarlyStop("accuracy", 3), checkpoint_dir=tmp_path, checkpoint_steps=1)
    with pytest.raises(KeyboardInterrupt):
        run(config, Scripted(*script, die_before=3), env=HERE)
    summary = run(config, Scripted(*script[3:]), env=HERE).summary
    assert (summary.steps, summary.stopped_early) == (15, True)
    assert summary.best == {"metric": "accuracy", "value": pytest.approx(0.5), "step": 6}


class Interrupted(Scripted):
    """A task that receives SIGTERM in step 6, the last of the second epoch, and has one NaN loss in step 8."""

    def __init__(self, *accuracies: float, seen: int = 0) -> None:
        super().__init__(*accuracies)
        self._steps = seen

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        self._steps += 1
        if self._steps == 6:
            signal.raise_signal(signal.SIGTERM)
        return super().losses(model, batch) * (float("nan") if self._steps == 8 else 1)


def test_a_state_saved_unevaluated_is_evaluated_by_the_next_process_and_a_rollback_keeps_it(tmp_path: Path) -> None:
    stop = EarlyStop("accuracy", 2)
    config = a_config(early_stop=stop, checkpoint_dir=tmp_path, on_nonfinite=OnNonfinite.ROLLBACK, csv=tmp_path / "csv")
    assert run(config, Interrupted(0.5), env=HERE).exit_code == Exit.TERMINATED
    summary = run(config, Interrupted(0.4, 0.3, 0.6, 0.6, seen=6), env=HERE).summary
    # Step 6 is evaluated by the second process. Evaluations 2 and 3 were worse than evaluation 1.
    assert (summary.rollbacks, summary.steps, summary.stopped_early) == (1, 9, True)
    assert summary.best == {"metric": "accuracy", "value": pytest.approx(0.5), "step": 3}


def test_a_metric_that_the_task_lacks_is_named() -> None:
    with pytest.raises(BadConfig, match=r"--keep-best names the metric 'acuracy'\. The task has accuracy\."):
        run(a_config(keep_best="acuracy"), Scripted(0.5), env=HERE)
    with pytest.raises(BadConfig, match=r"--early-stop names the metric 'x'"):
        run(a_config(early_stop=EarlyStop("x", 1)), Scripted(0.5), env=HERE)


@pytest.mark.parametrize("text", ["loss", "loss:", ":3", "loss:0", "loss:-1", "loss:x"])
def test_a_wrong_early_stop_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="--early-stop is "):
        EarlyStop.parse(text)


@pytest.mark.parametrize("text", ["5", "5:", ":5", "5:0", "-1:5"])
def test_a_wrong_profile_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="--profile is "):
        ProfileWindow.parse(text)


def test_the_best_interval_is_youngs_and_dalys() -> None:
    assert best_interval(0.5, 3600) == pytest.approx(59.5)
    assert best_interval(5000, 3600) == 3600
    assert suggest_interval(0.05, 3600).endswith("with --checkpoint-seconds 18.9 (Young, Daly).")
    assert "18.9 for one a hour" not in suggest_interval(0.05, None)
    assert "18.9 for one an hour, 46.4 for one in 6 hours" in suggest_interval(0.05, None)


def rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_a_csv_report_has_every_step_once_also_after_a_crash(tmp_path: Path) -> None:
    config = a_config(epochs=3, checkpoint_dir=tmp_path / "c", checkpoint_steps=4, csv=tmp_path / "new" / "curves.csv")
    with pytest.raises(Killed):
        run(config, Lines(kill_after(7)), env=HERE)
    with (tmp_path / "new" / "curves.csv").open("a") as stream:
        stream.write("7,2,train/lo")
    run(config, Lines(), env=HERE)
    found = rows(tmp_path / "new" / "curves.csv")
    assert [int(row["step"]) for row in found if row["name"] == "train/loss"] == list(range(1, 10))
    evaluated = [(row["step"], row["epoch"]) for row in found if row["name"] == "test/loss"]
    assert evaluated == [("3", "0"), ("6", "1"), ("9", "2")]
    alone = tmp_path / "alone.csv"
    run(a_config(epochs=3, csv=alone), Lines(), env=HERE)
    assert alone.read_text() == (tmp_path / "new" / "curves.csv").read_text()


class FlawedOnce(Lines):
    """A task with a NaN loss in the ninth pass: two evaluations, then step 7."""

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        self._calls += 1
        return super().losses(model, batch) * (float("nan") if self._calls == 9 else 1.0)


def rolled_back(path: Path, **changes: object) -> Config:
    """Return a configuration of nine steps whose first checkpoint is that of step 4, within an epoch."""
    changes |= {"checkpoint_steps": 4, "on_nonfinite": OnNonfinite.ROLLBACK}
    return a_config(epochs=3, checkpoint_dir=path / "c", **changes)


def test_values_that_a_task_reports_are_in_the_curves_at_their_step(tmp_path: Path) -> None:
    class Reporting(Lines):
        def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
            if model.training:
                attach.log({}, loss=9.0, batch_mean=2.5)
            return super().losses(model, batch)

        def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
            attach.log({}, f1=0.25)
            return super().metrics(model, batch)

    run(a_config(epochs=1, csv=tmp_path / "curves.csv"), Reporting(), partial(attach.rank_recorder, {}), env=HERE)
    found = rows(tmp_path / "curves.csv")
    steps = [row["step"] for row in found if row["name"] == "train/loss"]
    assert [row["step"] for row in found if row["name"] == "user/batch_mean"] == steps
    assert {row["value"] for row in found if row["name"] == "user/batch_mean"} == {"2.5"}
    assert [row["step"] for row in found if row["name"] == "user/f1"] == steps[-1:]
    assert all(float(row["value"]) < 9.0 for row in found if row["name"] == "train/loss")


def test_a_csv_report_has_every_step_once_also_after_a_rollback(tmp_path: Path) -> None:
    summary = run(rolled_back(tmp_path, csv=tmp_path / "curves.csv"), FlawedOnce(), env=HERE).summary
    assert (summary.rollbacks, summary.lost_steps) == (1, 2)
    run(a_config(epochs=3, csv=tmp_path / "alone.csv"), Lines(), env=HERE)
    assert (tmp_path / "curves.csv").read_text() == (tmp_path / "alone.csv").read_text()


def test_tensorboard_has_every_step_once_also_after_a_rollback(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert run(rolled_back(tmp_path, tensorboard=tmp_path / "e"), FlawedOnce(), env=HERE).summary.rollbacks == 1
    events = reading.EventAccumulator(str(tmp_path / "e"))
    events.Reload()
    assert [point.step for point in events.Scalars("train/loss")] == list(range(1, 10))
    assert [point.step for point in events.Scalars("test/loss")] == [3, 6, 9]


def test_a_report_that_cannot_go_back_ends_without_the_run(tmp_path: Path) -> None:
    class Unplugged(FlawedOnce):
        def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
            losses = super().losses(model, batch)
            if not losses.isfinite().all():
                (tmp_path / "curves.csv").unlink()
                (tmp_path / "curves.csv").mkdir()
            return losses

    summary = run(rolled_back(tmp_path, csv=tmp_path / "curves.csv"), Unplugged(), env=HERE).summary
    assert (summary.rollbacks, summary.steps) == (1, 9)


def test_a_csv_file_that_cannot_be_written_is_refused_in_a_sentence() -> None:
    with pytest.raises(BadConfig, match=r"--csv is /proc/x/y\.csv, which cannot be written: "):
        run(a_config(csv=Path("/proc/x/y.csv")), Lines(), env=HERE)


def test_other_ranks_write_no_reports(tmp_path: Path) -> None:
    from ddp_trainer.train.observability.loggers import open_reports

    with closing(open_reports(a_config(csv=tmp_path / "c.csv"), Environment(rank=1, world_size=2))) as reports:
        reports.begin(0)
    assert not list(tmp_path.iterdir())


def test_tensorboard_is_asked_for_in_a_sentence_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(BadConfig, match=r"not installed\. Install kubectl-ddp\[tensorboard\]\."):
        run(a_config(tensorboard=Path("events")), Lines(), env=HERE)


def test_a_trace_holds_the_steps_that_were_asked_for(tmp_path: Path) -> None:
    run(a_config(profile=ProfileWindow(2, 3), profile_dir=tmp_path / "traces"), Lines(), env=HERE)
    (trace,) = (tmp_path / "traces").iterdir()
    assert trace.name == "profile-rank0-step2.json"
    names = [event.get("name") for event in json.loads(trace.read_text())["traceEvents"]]
    assert sum(name == "Optimizer.step#AdamW.step" for name in names) == 3


class Images(Lines):
    """Records each forward pass: whether it trains, its samples, its dtype, and whether its input is channels-last."""

    def __init__(self) -> None:
        super().__init__()
        self.passes: set[tuple[bool, int, torch.dtype, bool]] = set()

    def model(self) -> nn.Module:
        model = nn.Sequential(nn.Conv2d(3, 2, 1), nn.Flatten(), nn.LazyLinear(1))
        model(torch.zeros(1, 3, 2, 2))
        model[0].register_forward_hook(self._record)
        return model

    def _record(self, module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        is_last = inputs[0].is_contiguous(memory_format=torch.channels_last)
        self.passes.add((module.training, len(output), output.dtype, is_last))

    def train_samples(self) -> Points:
        return Points(torch.rand(8, 3, 2, 2), None)

    def test_samples(self) -> Points:
        return Points(torch.rand(6, 3, 2, 2), None)

    def losses(self, model: nn.Module, batch: Tensor) -> Tensor:
        return model(batch).float().square().squeeze(1)

    def metrics(self, model: nn.Module, batch: Tensor) -> Mapping[str, Tensor]:
        return {"loss": self.losses(model, batch).sum()}


def test_an_evaluation_makes_the_passes_of_training() -> None:
    task = Images()
    options = {"micro_batch": 2, "precision": PrecisionName.BF16, "channels_last": True}
    run(a_config(epochs=1, global_batch=8, batch_slices=2, **options), task, env=HERE)
    assert task.passes == {(True, 2, torch.bfloat16, True), (False, 2, torch.bfloat16, True)}


def test_an_evaluation_without_micro_batches_takes_all_samples_of_a_small_test_set_at_once() -> None:
    task = Images()
    run(Config(epochs=1, global_batch=8, batch_slices=2, warmup_steps=0), task, env=HERE)
    assert (False, 6, torch.float32, False) in task.passes
