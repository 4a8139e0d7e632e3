"""The stopwatch for anyone's training loop."""

from __future__ import annotations

from ddp_trainer.common.time_classes import Phase
from ddp_trainer.metrics.record.user_metrics import StepMeter
from ddp_trainer.process.recorder import NoopRankRecorder


class Heard(NoopRankRecorder):
    """Keeps the steps it is told."""

    def __init__(self) -> None:
        self.steps: list[tuple[float, ...]] = []

    def step(self, step: int, epoch: int, samples: int, *phases: float) -> None:
        self.steps.append((step, epoch, samples, *phases))


class Clock:
    """Time that passes when told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


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


def test_every_step_starts_from_nothing() -> None:
    recorder, clock = Heard(), Clock()
    meter = StepMeter(recorder, clock=clock)
    clock.now += 1
    meter.step(samples=1)
    clock.now += 0.5
    meter.step(samples=2)
    assert [step[0] for step in recorder.steps] == [1, 2]
    assert [sum(step[3:]) for step in recorder.steps] == [1.0, 0.5]


def test_a_word_that_names_no_phase_counts_as_other() -> None:
    recorder, clock = Heard(), Clock()
    meter = StepMeter(recorder, clock=clock)
    clock.now += 1
    meter.end_phase("lunch")
    meter.step(samples=1)
    assert recorder.steps[0][-1] == 1.0
