"""Phases of a step add up to its time."""

from __future__ import annotations

from ddp_trainer.common.time_classes import Phase
from ddp_trainer.process.recorder import NoopRankRecorder
from ddp_trainer.train.observability.step_timer import StepTimer
from tests.support.train_builders import Clock


def test_phases_add_up_to_the_time_that_passed() -> None:
    clock = Clock()
    recorded: list[float] = []

    class Ear(NoopRankRecorder):
        def step(self, *values: float) -> None:  # type: ignore[override]
            recorded.extend(values)

    phases = StepTimer(clock)
    for phase, seconds in ((Phase.FORWARD, 2.0), (Phase.BACKWARD, 3.0), (Phase.FORWARD, 1.0), (Phase.CHECKPOINT, 4.0)):
        clock.now += seconds
        phases.end_phase(phase)
    clock.now += 0.5
    assert phases.report(Ear(), step=1, epoch=0, samples=8) == 10.5
    assert recorded == [1, 0, 8, 0.0, 0.0, 3.0, 3.0, 0.0, 0.0, 4.0, 0.5]
    assert phases.non_step_seconds == (0.0, 4.0, 0.0)
    clock.now += 2.0
    phases.record_evaluation()
    assert phases.non_step_seconds == (0.0, 4.0, 2.0)
