"""Steps of a loop that tells nothing, from what can be seen of it."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Any

import pytest

from ddp_trainer.metrics.record.batched_steps import StepBatchResult, StepBudget
from ddp_trainer.metrics.record.sample_counter import SampleCounter
from ddp_trainer.metrics.record.step_detector import RIVAL_STEPS, Timeline


@dataclass
class Step:
    samples: int
    waited: float
    forward: float
    backward: float
    moved: float
    rest: float

    @property
    def seconds(self) -> float:
        return self.waited + self.forward + self.backward + self.moved + self.rest


class Optimizer:
    """Something that steps."""


class Loop:
    """A script's loop, and what was heard of it; every call takes the time that it is given."""

    def __init__(self) -> None:
        self.now = 100.0
        self.steps: list[Step] = []
        self.timeline = Timeline(self, clock=lambda: self.now)
        self.optimizer = Optimizer()
        self.loader = SampleCounter()

    def record_steps(self, _: Any, stride: StepBatchResult) -> None:
        assert stride.steps == 1, "these steps are not short"
        self.steps.append(Step(*astuple(stride)[2:]))
        assert stride.last == self.steps[-1].seconds

    def step_budget(self) -> StepBudget:
        raise AssertionError("these steps are not short")

    def fetch(
        self, samples: int = 4, seconds: float = 1.0, *, is_training: bool = True, of: SampleCounter | None = None
    ) -> None:
        loader = of or self.loader
        begun = self.now
        self.now += seconds
        loader.samples += samples
        self.timeline.record_fetch(begun, loader, is_training=is_training)

    def backward(self, forward: float = 2.0, seconds: float = 4.0) -> None:
        self.now += forward
        self.timeline.backward()
        self.now += seconds
        self.timeline.backward_done()

    def move(self, optimizer: Optimizer | None = None, seconds: float = 8.0) -> None:
        self.timeline.move(optimizer or self.optimizer)
        self.now += seconds
        self.timeline.moved(optimizer or self.optimizer)


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_plain_loop_is_taken_apart_into_its_phases(loop: Loop) -> None:
    for _ in range(3):
        loop.fetch()
        loop.backward()
        loop.move()
    assert loop.steps == [Step(4, 1.0, 2.0, 4.0, 8.0, 0.0)] * 3


def test_what_was_before_the_first_batch_belongs_to_no_step(loop: Loop) -> None:
    loop.now += 1000
    loop.fetch()
    loop.backward()
    loop.move()
    assert loop.steps[0].seconds == 15


def test_batches_that_are_accumulated_are_one_step(loop: Loop) -> None:
    for _ in range(4):
        loop.fetch()
        loop.backward()
    loop.move()
    assert loop.steps == [Step(16, 4.0, 8.0, 16.0, 8.0, 0.0)]


def test_a_batch_that_is_fetched_ahead_counts_once(loop: Loop) -> None:
    loop.fetch()
    for _ in range(3):
        loop.fetch()
        loop.backward()
        loop.move()
    loop.backward()
    loop.move()
    assert sum(step.samples for step in loop.steps) == 16
    assert len(loop.steps) == 4


def test_the_samples_of_several_loaders_are_added_up(loop: Loop) -> None:
    loop.fetch()
    loop.fetch(samples=2, of=SampleCounter())
    loop.backward()
    loop.move()
    assert [step.samples for step in loop.steps] == [6]


def test_a_batch_that_was_fetched_while_a_step_ended_takes_no_time_from_it(loop: Loop) -> None:
    loop.fetch()
    begun = loop.now
    loop.backward()
    loop.move()
    loop.now += 1
    loop.timeline.record_fetch(begun, loop.loader, is_training=True)
    loop.backward()
    loop.move()
    assert loop.steps == [Step(4, 1.0, 2.0, 4.0, 8.0, 0.0), Step(0, 1.0, 2.0, 4.0, 8.0, 0.0)]


def test_an_evaluation_without_gradients_is_no_training(loop: Loop) -> None:
    for _ in range(2):
        loop.fetch()
        loop.backward()
        loop.move()
        for _ in range(5):
            loop.fetch(is_training=False, of=SampleCounter())
            loop.now += 10
    loop.fetch()
    loop.backward()
    loop.move()
    assert [step.samples for step in loop.steps] == [4, 4, 4]
    assert [step.waited for step in loop.steps] == [1, 1, 1]
    assert [step.rest for step in loop.steps] == [0, 55, 55]


def test_an_evaluation_with_gradients_is_known_by_its_end(loop: Loop) -> None:
    evaluation = SampleCounter()
    for _ in range(5):
        loop.fetch(of=evaluation)
    evaluation.ended()
    loop.fetch()
    loop.backward()
    loop.move()
    assert [step.samples for step in loop.steps] == [4]


def test_gradients_that_are_computed_in_a_closure_are_no_part_of_the_optimizer(loop: Loop) -> None:
    loop.fetch()
    loop.now += 0.5
    loop.timeline.move(loop.optimizer)
    loop.backward()
    loop.now += 8
    loop.timeline.moved(loop.optimizer)
    assert loop.steps == [Step(4, 1.0, 2.5, 4.0, 8.0, 0.0)]


def test_an_optimizer_that_steps_by_its_base_class_steps_once(loop: Loop) -> None:
    for _ in range(2):
        loop.backward()
        loop.timeline.move(loop.optimizer)
        loop.move()
        loop.timeline.moved(loop.optimizer)
    assert len(loop.steps) == 2


def test_an_optimizer_that_failed_half_way_steps_once_the_next_time(loop: Loop) -> None:
    loop.timeline.move(loop.optimizer)
    loop.move()
    loop.move()
    assert len(loop.steps) == 2


def test_of_two_optimizers_that_take_turns_one_counts(loop: Loop) -> None:
    critic, generator = Optimizer(), Optimizer()
    for number in range(1, 41):
        loop.backward()
        loop.move(critic)
        if number % 5 == 0:
            loop.backward()
            loop.move(generator)
    assert len(loop.steps) == 40


def test_an_optimizer_for_each_weight_is_one_step(loop: Loop) -> None:
    optimizers = [Optimizer() for _ in range(50)]
    for _ in range(3):
        for optimizer in optimizers:
            loop.move(optimizer)
    assert len(loop.steps) == 3


def test_an_optimizer_that_goes_on_alone_counts_from_then_on(loop: Loop) -> None:
    first, second = Optimizer(), Optimizer()
    loop.move(first)
    for _ in range(RIVAL_STEPS + 9):
        loop.move(second)
    assert len(loop.steps) == 1 + 10


def test_an_optimizer_that_is_gone_is_followed_by_the_next(loop: Loop) -> None:
    first = Optimizer()
    loop.move(first)
    del first
    loop.move(Optimizer())
    assert len(loop.steps) == 2
