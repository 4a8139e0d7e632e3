"""Short steps in a row: counted to the last, with all of the time that they took, and taken apart now and then."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from ddp_trainer.metrics.record.autolog import Hooks
from ddp_trainer.metrics.record.batched_steps import (
    SHORT_SECONDS,
    STRIDE_SECONDS,
    TIMED_STEPS,
    StepBatchResult,
    StepBudget,
)
from ddp_trainer.metrics.record.step_detector import Timeline

WAIT, FORWARD, BACKWARD, MOVE, REST = 0.0001, 0.0002, 0.0004, 0.0008, 0.00005
"""Seconds of a step; it has two samples."""
FIRST: Final = 1 + TIMED_STEPS
"""So many are taken apart at first; the very first is like no other."""
STEP = WAIT + FORWARD + BACKWARD + MOVE + REST


class Heard:
    """What came of the steps."""

    def __init__(self) -> None:
        self.taken_apart: list[float] = []
        self.strides: list[StepBatchResult] = []
        self.reached: list[float] = []
        self.samples = 0
        self.phases = dict.fromkeys(("waited", "forward", "backward", "moved", "rest"), 0.0)
        self.unwatched = 10_000

    def record_steps(self, optimizer: Any, stride: StepBatchResult) -> None:
        del optimizer
        if stride.steps == 1:
            self.taken_apart.append(stride.last)
        else:
            self.strides.append(stride)
        self.samples += stride.samples
        for phase in self.phases:
            self.phases[phase] += getattr(stride, phase)

    def step_budget(self) -> StepBudget:
        return StepBudget(self.steps, self.unwatched, self.reached.append)

    @property
    def steps(self) -> int:
        return len(self.taken_apart) + sum(stride.steps for stride in self.strides)

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


class Mover(torch.optim.Optimizer):
    """An optimizer whose steps take their time, and nothing else."""

    def __init__(self, weights: list[nn.Parameter], spend: Callable[[float], None]) -> None:
        super().__init__(weights, {"lr": 0.1})
        self._spend = spend

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        del closure
        self._spend(MOVE)


class Script(Dataset[torch.Tensor]):
    """A script over torch's own parts, whose time goes by where it says so."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wait = WAIT
        self.weight = nn.Parameter(torch.ones(1))
        self.weight.register_hook(lambda _: self.add_time(BACKWARD))
        self.optimizer = self.mover()

    def add_time(self, seconds: float) -> None:
        self.now += seconds

    def mover(self) -> torch.optim.Optimizer:
        return Mover([self.weight], self.add_time)

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        self.add_time(self.wait / 2)
        return torch.ones(1)

    def compute(self, batch: torch.Tensor) -> None:
        self.add_time(FORWARD)
        (self.weight * batch).sum().backward()  # type: ignore[no-untyped-call]

    def step(self, batch: torch.Tensor) -> None:
        self.compute(batch)
        self.optimizer.step()
        self.add_time(REST)

    def loader(self) -> DataLoader[torch.Tensor]:
        return DataLoader(self, batch_size=2)

    def train(self, passes: int) -> None:
        for _ in range(passes):
            for batch in self.loader():
                self.step(batch)


@pytest.fixture
def script() -> Script:
    return Script()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.fixture
def hooks(script: Script, heard: Heard) -> Iterator[Hooks]:
    hooks = Hooks(torch, Timeline(heard, clock=lambda: script.now))
    hooks.install()
    yield hooks
    hooks.uninstall()


def test_of_many_short_steps_a_few_are_taken_apart(script: Script, heard: Heard, hooks: Hooks) -> None:
    begun = script.now
    script.train(passes=10)
    hooks.uninstall()
    assert heard.steps == 200
    assert heard.samples == 400
    assert len(heard.taken_apart) == FIRST + TIMED_STEPS
    assert heard.seconds == pytest.approx(script.now - begun - REST)
    assert heard.phases == pytest.approx(
        {
            "waited": 200 * WAIT,
            "forward": 200 * FORWARD,
            "backward": 200 * BACKWARD,
            "moved": 200 * MOVE,
            "rest": 199 * REST,
        }
    )


def test_each_step_of_a_stride_is_told_as_it_ends(script: Script, heard: Heard, hooks: Hooks) -> None:
    script.train(passes=1)
    assert heard.reached == list(range(FIRST + 1, 21))
    assert not heard.strides, "what it took is told later"
    hooks.uninstall()
    assert heard.steps == 20


def test_backward_passes_are_those_of_torch_during_a_stride(script: Script, heard: Heard, hooks: Hooks) -> None:
    ours = torch.autograd.backward
    script.train(passes=1)
    assert torch.autograd.backward is not ours
    hooks.uninstall()
    assert torch.autograd.backward is ours.__wrapped__  # type: ignore[attr-defined]
    assert heard.strides


def test_what_somebody_else_has_put_over_the_hooks_stays(
    script: Script, heard: Heard, hooks: Hooks, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, calls = torch.autograd.backward, []

    def over(*args: Any, **kwargs: Any) -> None:
        calls.append(args)
        ours(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", over)
    script.train(passes=10)
    assert torch.autograd.backward is over
    assert len(calls) == 200
    hooks.uninstall()
    assert heard.steps == 200
    assert heard.phases["backward"] == pytest.approx(200 * BACKWARD)


def test_a_long_step_ends_a_stride_and_is_known_for_what_it_is(script: Script, heard: Heard, hooks: Hooks) -> None:
    for number, batch in enumerate(script.loader(), start=1):
        script.add_time(2.0 if number == 10 else 0.0)
        script.step(batch)
    assert [stride.steps for stride in heard.strides] == [10 - FIRST]
    assert heard.strides[0].last == pytest.approx(2.0 + STEP)
    assert heard.strides[0].last > SHORT_SECONDS
    assert len(heard.taken_apart) == FIRST + TIMED_STEPS


def test_waits_for_data_are_timed_in_a_stride_too(script: Script, heard: Heard, hooks: Hooks) -> None:
    script.train(passes=1)
    script.wait = 5 * WAIT
    script.train(passes=1)
    hooks.uninstall()
    assert len(heard.strides) == 1
    assert heard.phases["waited"] == pytest.approx(20 * WAIT + 20 * 5 * WAIT)
    assert heard.phases["forward"] == pytest.approx(40 * FORWARD)


def test_accumulated_batches_are_one_step_of_a_stride(script: Script, heard: Heard, hooks: Hooks) -> None:
    for _ in range(5):
        for number, batch in enumerate(script.loader(), start=1):
            script.compute(batch)
            if number % 2 == 0:
                script.optimizer.step()
    hooks.uninstall()
    assert (heard.steps, heard.samples) == (50, 200)
    assert sum(stride.steps for stride in heard.strides) == 50 - FIRST
    assert heard.phases["forward"] == pytest.approx(100 * FORWARD)
    assert heard.phases["waited"] == pytest.approx(100 * WAIT)


def test_an_evaluation_ends_a_stride_and_is_no_training(script: Script, heard: Heard, hooks: Hooks) -> None:
    script.train(passes=1)
    with torch.no_grad():
        for _ in script.loader():
            script.add_time(0.001)
    assert len(heard.strides) == 1
    script.train(passes=1)
    hooks.uninstall()
    assert (heard.steps, heard.samples) == (40, 80)
    assert heard.phases["waited"] == pytest.approx(40 * WAIT)
    assert heard.phases["rest"] == pytest.approx(39 * REST + 20 * (WAIT + 0.001))


def test_an_evaluation_with_gradients_is_known_by_its_end(script: Script, heard: Heard, hooks: Hooks) -> None:
    script.train(passes=1)
    for _ in script.loader():
        pass
    script.train(passes=1)
    hooks.uninstall()
    assert (heard.steps, heard.samples) == (40, 80)


def test_another_optimizer_ends_a_stride(script: Script, heard: Heard, hooks: Hooks) -> None:
    script.train(passes=1)
    other = script.mover()
    for _ in range(3):
        other.step()
    assert len(heard.strides) == 1
    assert heard.steps == 20
    hooks.uninstall()


def test_an_optimizer_that_goes_on_alone_after_a_stride_counts(script: Script, heard: Heard, hooks: Hooks) -> None:
    script.train(passes=1)
    script.optimizer = script.mover()
    script.train(passes=5)
    hooks.uninstall()
    assert (heard.steps, heard.samples) == (120, 240)


def test_a_stride_that_ends_before_its_first_step_loses_no_time(script: Script, heard: Heard, hooks: Hooks) -> None:
    begun, other = script.now, script.mover()
    for number, batch in enumerate(script.loader(), start=1):
        script.compute(batch)
        if number == FIRST + 1:
            assert heard.steps == FIRST
            other.step()
        script.optimizer.step()
    hooks.uninstall()
    assert heard.steps == 20
    assert heard.seconds == pytest.approx(script.now - begun)


def test_a_stride_ends_in_time_when_steps_get_longer(script: Script, heard: Heard, hooks: Hooks) -> None:
    script.train(passes=1)
    script.wait = SHORT_SECONDS / 2
    script.train(passes=10)
    longest = max(stride.waited for stride in heard.strides)
    assert longest < 2 * STRIDE_SECONDS
    hooks.uninstall()
    assert heard.steps == 220


def test_indices_of_any_kind_may_be_drawn(script: Script, heard: Heard, hooks: Hooks) -> None:
    lists = [[index] for index in range(15)]
    indices = [*lists, *[(index for index in (1, 2))] * 1, *lists]
    for batch in DataLoader(script, batch_sampler=indices):  # type: ignore[arg-type] # what a script may do
        script.step(batch)
    hooks.uninstall()
    assert heard.steps == 31


def test_a_step_that_is_to_be_looked_at_is_in_no_stride(script: Script, heard: Heard, hooks: Hooks) -> None:
    heard.unwatched = TIMED_STEPS
    script.train(passes=1)
    hooks.uninstall()
    assert {stride.steps for stride in heard.strides} == {TIMED_STEPS}
    heard.unwatched = 0
    hooks.install()
    script.train(passes=1)
    hooks.uninstall()
    assert heard.steps == 40
    assert sum(stride.steps for stride in heard.strides) < 20


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_any_size_are_counted(script: Script, heard: Heard, hooks: Hooks, workers: int) -> None:
    for _ in range(3):
        for batch in DataLoader(script, batch_size=3, num_workers=workers):
            script.step(batch)
    hooks.uninstall()
    assert (heard.steps, heard.samples) == (42, 120)
    assert heard.strides
