"""Steps of a loop with their phases and samples, detected or reported by the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ddp_trainer.common.time_classes import Phase
from ddp_trainer.metrics.record import step_detector
from ddp_trainer.metrics.record.user_metrics import StepMeter
from ddp_trainer.process.recorder import NoopRankRecorder
from tests.support.clocks import Clock

MILLISECOND = 0.001


class Optimizer:
    pass


class Loop:
    """Loop of a script, with the reports about it. Each call takes the given time, in seconds."""

    def __init__(self) -> None:
        self.now = 100.0
        self.reports: list[step_detector.StepBatch] = []
        self.numbers: list[int] = []
        self.first_batches = 0
        self.due_steps = 10_000
        self.detector = step_detector.StepDetector(self, clock=lambda: self.now)
        self.optimizer = Optimizer()

    def record_first_batch(self) -> None:
        self.first_batches += 1

    def record_step_number(self, steps: int) -> None:
        self.numbers.append(steps)

    def record_steps(self, optimizer: Any, batch: step_detector.StepBatch) -> int:
        del optimizer
        self.reports.append(batch)
        return self.due_steps

    @property
    def steps(self) -> int:
        self.detector.report()
        return sum(report.steps for report in self.reports)

    def fetch(self, samples: int = 4, seconds: float = 1.0, *, is_training: bool = True) -> None:
        begun = self.now
        self.now += seconds
        self.detector.record_fetch(begun, self.now, samples, is_training=is_training)

    def optimize(self, optimizer: Optimizer | None = None, computed: float = 2.0, seconds: float = 8.0) -> None:
        self.now += computed
        self.detector.begin_optimizer(optimizer or self.optimizer)
        self.now += seconds
        self.detector.end_optimizer(optimizer or self.optimizer)

    def short_step(self) -> None:
        self.fetch(seconds=MILLISECOND)
        self.optimize(computed=MILLISECOND, seconds=2 * MILLISECOND)


def one(samples: int, waited: float, computed: float, optimized: float, other: float) -> step_detector.StepBatch:
    return step_detector.StepBatch(
        1, waited + computed + optimized + other, samples, waited, computed, optimized, other
    )


@pytest.fixture
def loop() -> Loop:
    return Loop()


def test_a_plain_loop_is_taken_apart_into_its_phases(loop: Loop) -> None:
    for _ in range(3):
        loop.fetch()
        loop.optimize()
    assert loop.reports == [one(4, 1.0, 2.0, 8.0, 0.0)] * 3
    assert loop.first_batches == 1


def test_accumulated_batches_are_one_step(loop: Loop) -> None:
    for _ in range(4):
        loop.fetch()
        loop.now += 2
    loop.optimize()
    assert loop.reports == [one(16, 4.0, 10.0, 8.0, 0.0)]


def test_a_batch_that_was_fetched_while_a_step_ended_takes_no_time_from_it(loop: Loop) -> None:
    loop.fetch()
    begun = loop.now
    loop.optimize()
    loop.now += 1
    loop.detector.record_fetch(begun, loop.now, 4, is_training=True)
    loop.optimize()
    assert loop.reports == [one(4, 1.0, 2.0, 8.0, 0.0)] * 2


def test_an_evaluation_without_gradients_is_no_training(loop: Loop) -> None:
    loop.fetch()
    loop.optimize()
    for _ in range(5):
        loop.fetch(is_training=False)
        loop.now += 10
    loop.fetch()
    loop.optimize()
    assert loop.reports == [one(4, 1.0, 2.0, 8.0, 0.0), one(4, 1.0, 2.0, 8.0, 55.0)]


def test_short_steps_are_reported_together_and_numbered_at_once(loop: Loop) -> None:
    loop.short_step()
    assert loop.numbers == [1]
    loop.reports.clear()
    steps = round(step_detector.REPORT_SECONDS / (4 * MILLISECOND)) + 1
    for _ in range(steps):
        loop.short_step()
    assert loop.numbers == [1, *range(1, steps + 1)]
    (report,) = loop.reports
    assert (report.steps, report.samples, report.last) == (steps, 4 * steps, pytest.approx(4 * MILLISECOND))
    assert (report.waited, report.optimized) == pytest.approx((steps * MILLISECOND, 2 * steps * MILLISECOND))


def test_a_long_step_ends_a_report_of_short_ones(loop: Loop) -> None:
    for _ in range(3):
        loop.short_step()
    loop.fetch(seconds=2 * step_detector.SHORT_SECONDS)
    loop.optimize(computed=0.0, seconds=0.0)
    assert [report.steps for report in loop.reports] == [1, 3]
    assert loop.reports[-1].last == pytest.approx(2 * step_detector.SHORT_SECONDS)


def test_a_report_comes_after_as_many_steps_as_its_receiver_wants(loop: Loop) -> None:
    loop.due_steps = 2
    for _ in range(5):
        loop.short_step()
    assert [report.steps for report in loop.reports] == [1, 2, 2]


def test_an_optimizer_that_steps_by_its_base_class_steps_once(loop: Loop) -> None:
    for _ in range(2):
        loop.detector.begin_optimizer(loop.optimizer)
        loop.optimize()
        loop.detector.end_optimizer(loop.optimizer)
    assert loop.steps == 2


def test_an_optimizer_that_failed_half_way_steps_once_the_next_time(loop: Loop) -> None:
    loop.detector.begin_optimizer(loop.optimizer)
    loop.optimize()
    loop.optimize()
    assert loop.steps == 2


def test_of_two_optimizers_that_take_turns_one_counts(loop: Loop) -> None:
    critic, generator = Optimizer(), Optimizer()
    for number in range(1, 41):
        loop.optimize(critic)
        if number % 5 == 0:
            loop.optimize(generator)
    assert loop.steps == 40


def test_a_closure_of_the_optimizer_computes_gradients(loop: Loop) -> None:
    loop.fetch()
    loop.detector.begin_optimizer(loop.optimizer)
    for _ in range(2):
        loop.now += 0.5
        loop.detector.begin_closure()
        loop.now += 3.0
        loop.detector.end_closure()
    loop.now += 0.25
    loop.detector.end_optimizer(loop.optimizer)
    assert loop.reports == [one(4, 1.0, 6.0, 1.25, 0.0)]


def test_an_optimizer_for_each_weight_is_one_step(loop: Loop) -> None:
    optimizers = [Optimizer() for _ in range(50)]
    for _ in range(3):
        for optimizer in optimizers:
            loop.optimize(optimizer)
    assert loop.steps == 3


def test_an_optimizer_that_continues_alone_counts_from_then_on(loop: Loop) -> None:
    first, second = Optimizer(), Optimizer()
    loop.optimize(first)
    for _ in range(step_detector.OTHER_OPTIMIZER_STEPS + 9):
        loop.optimize(second)
    assert loop.steps == 1 + 10


@pytest.mark.parametrize(
    ("batch", "size"),
    [
        (np.zeros((8, 2)), 8),
        ({"input_ids": np.zeros((4, 128)), "labels": np.zeros((4, 128))}, 4),
        ([{"image": np.zeros((5, 2))}], 5),
        (np.float32(1), 0),
        (["a", "b"], 0),
        ([[[[[[np.zeros(3)]]]]]], 0),
    ],
)
def test_the_first_dimension_of_the_first_tensor_is_the_size(batch: Any, size: int) -> None:
    assert step_detector.size_of(batch) == size


class Heard(NoopRankRecorder):
    """Recorder that keeps the reported steps."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, ...]] = []

    def step(self, step: int, epoch: int, samples: int, *phases: float) -> None:
        self.steps.append((step, epoch, samples, *phases))


def test_time_goes_to_the_phase_that_was_reached_and_the_rest_to_other() -> None:
    recorder, clock = Heard(), Clock()
    meter = StepMeter(recorder, clock=clock)
    clock.now += 1
    meter.end_phase(Phase.DATA_WAIT)
    clock.now += 2
    meter.end_phase(Phase.FORWARD)
    clock.now += 4
    meter.end_phase(Phase.FORWARD)
    clock.now += 8
    meter.step(samples=16, epoch=3)
    spent = {Phase.DATA_WAIT: 1.0, Phase.FORWARD: 6.0, Phase.OTHER: 8.0}
    assert recorder.steps == [(1, 3, 16, *(spent.get(phase, 0.0) for phase in Phase))]


def test_an_unknown_phase_counts_as_other() -> None:
    recorder, clock = Heard(), Clock()
    meter = StepMeter(recorder, clock=clock)
    clock.now += 1
    meter.end_phase("lunch")
    meter.step(samples=1)
    assert recorder.steps[0][-1] == 1.0
