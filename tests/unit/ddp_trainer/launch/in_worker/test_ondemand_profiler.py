"""Trace of a worker on demand: steps of a real optimizer, with torch's own profiler."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
import torch
from torch.optim import optimizer as optimizers

from ddp_trainer.launch.in_worker import ondemand_profiler
from ddp_trainer.launch.in_worker.ondemand_profiler import REFUSAL, TRACE, Window


@pytest.fixture
def model() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)


def a_window(folder: Path, steps: int, clock: list[float] | None = None) -> Window:
    window = Window(str(folder), steps) if clock is None else Window(str(folder), steps, lambda: clock[0])
    window.remove = ondemand_profiler.hook()(window.on_optimizer_step).remove
    return window


def hooks() -> int:
    return len(optimizers._global_optimizer_post_hooks)


def test_a_window_holds_the_requested_steps_and_leaves_nothing_behind(
    tmp_path: Path, model: torch.optim.Optimizer
) -> None:
    before = hooks()
    a_window(tmp_path, 3)
    for _ in range(3):
        model.step()
        assert list(tmp_path.iterdir()) == []
    model.step()
    assert [file.name for file in tmp_path.iterdir()] == [TRACE]
    assert hooks() == before
    with gzip.open(tmp_path / TRACE) as file:
        names = [event.get("name", "") for event in json.load(file)["traceEvents"]]
    assert sum(name.startswith("Optimizer.step#SGD.step") for name in names) == 3


def test_of_several_optimizers_the_first_one_counts(tmp_path: Path, model: torch.optim.Optimizer) -> None:
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    a_window(tmp_path, 1)
    model.step()
    other.step()
    assert list(tmp_path.iterdir()) == []
    model.step()
    assert (tmp_path / TRACE).exists()


def test_a_window_that_lasts_too_long_ends_at_the_next_step(tmp_path: Path, model: torch.optim.Optimizer) -> None:
    clock = [0.0]
    a_window(tmp_path, 50, clock)
    model.step()
    clock[0] = ondemand_profiler.MOST_SECONDS + 1
    model.step()
    assert (tmp_path / TRACE).exists()


def test_no_trace_begins_if_its_folder_is_gone(tmp_path: Path, model: torch.optim.Optimizer) -> None:
    before = hooks()
    a_window(tmp_path / "gone", 1)
    model.step()
    assert hooks() == before


def test_a_profiler_of_the_script_itself_refuses_the_request(tmp_path: Path, model: torch.optim.Optimizer) -> None:
    before = hooks()
    with torch.profiler.profile() as own:
        a_window(tmp_path, 1)
        model.step()
        model.step()
    assert (tmp_path / REFUSAL).read_text() == "RuntimeError: the script runs its own profiler"
    assert hooks() == before
    assert sum(event.count for event in own.key_averages() if event.key.startswith("Optimizer.step")) == 2
