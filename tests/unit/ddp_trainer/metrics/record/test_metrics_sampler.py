"""Sampled steps: busy time, exposed communication, and passes of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from ddp_trainer.metrics.record import ddp_comm_sampler, recorder_factory
from ddp_trainer.metrics.record.ddp_comm_sampler import MAX_INTERVAL_STEPS, STOCK_RATE, CommSampler, Sample
from ddp_trainer.metrics.record.sampler import Watch


class Model:
    """A model with DDP's timer, in the form of torch's bindings.

    ``tests/local/metrics/test_metrics_hooks.py`` reads the timer of torch.
    """

    def __init__(self, exposed: float = 0.25, passes: int = 1) -> None:
        self.rate = STOCK_RATE
        self.passes, self.iteration = passes, 0
        self.numbers = {"backward_comm_time": int(exposed * 1e9) + 7, "backward_compute_comm_overlap_time": 7}
        self.numbers |= {"forward_compute_time": 100, "backward_compute_time": 300}
        self.reducer = self.logger = self

    def _set_ddp_runtime_logging_sample_rate(self, rate: int) -> None:
        self.rate = rate

    def _get_ddp_logging_data(self) -> SimpleNamespace:
        return SimpleNamespace(ints_map=self.numbers | {"iteration": self.iteration})

    def step(self) -> None:
        self.iteration += self.passes if self.rate == 1 else 0


class Heard:
    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []

    def sampled(self, busy_seconds: float, comm_exposed_seconds: float) -> None:
        self.samples.append((busy_seconds, comm_exposed_seconds))

    def gpu_memory(self, memory: dict[str, float], before: dict[str, float]) -> None:
        raise AssertionError("there is no GPU")


@pytest.fixture(autouse=True)
def no_models() -> Iterator[None]:
    before = list(ddp_comm_sampler.models)
    ddp_comm_sampler.models.clear()
    yield
    ddp_comm_sampler.models.clear()
    ddp_comm_sampler.models.update(before)


def run(watch: Watch, models: list[Model], steps: int, seconds: float = 1.0, waited: float = 0.0) -> None:
    until = left = watch.first
    for _ in range(steps):
        for model in models:
            model.step()
        left -= 1
        if left <= 0:
            until = left = watch.sample_if_due(seconds, waited, until)


@pytest.mark.parametrize(
    ("models", "waited", "sample"),
    [
        pytest.param([Model(0.25)], 0.0, (0.75, 0.25), id="one model"),
        pytest.param([Model(0.25), Model(0.5)], 0.0, (0.25, 0.75), id="two models, one after the other"),
        pytest.param([Model(0.125, passes=4)], 0.0, (0.5, 0.5), id="a wait in each of several passes"),
        pytest.param([Model(9.0)], 0.0, (0.0, 1.0), id="no longer than the step"),
        pytest.param([Model(0.25)], 0.125, (0.625, 0.375), id="with the waits that the loop reports"),
        pytest.param([], 0.5, (0.5, 0.5), id="a loop without DDP"),
    ],
)
def test_a_sampled_step_is_split_into_busy_and_exposed(
    models: list[Model], waited: float, sample: tuple[float, float]
) -> None:
    recorder = Heard()
    ddp_comm_sampler.models.update(models)
    run(Watch(recorder), models, 50, waited=waited)
    assert set(recorder.samples) == {sample}
    assert 2 <= len(recorder.samples) <= 10
    assert {model.rate for model in models} <= {STOCK_RATE}, "DDP keeps its own rate between samples"


def test_the_share_of_the_forward_pass_comes_from_the_timer() -> None:
    model = Model()
    ddp_comm_sampler.models.add(model)
    run(watch := Watch(Heard()), [model], 20)
    assert watch.forward_share == 0.25
    assert Watch(Heard()).forward_share == 1.0, "not known without a sample"


def test_without_ddp_and_without_reported_waits_there_is_no_sample() -> None:
    recorder = Heard()
    run(Watch(recorder), [], 500)
    run(Watch(recorder, measures_waits=False), [], 500, waited=0.5)
    assert recorder.samples == []


def test_a_torch_with_another_timer_is_left_alone() -> None:
    recorder = Heard()
    ddp_comm_sampler.models.add(broken := SimpleModel())
    run(Watch(recorder), [], 500)
    assert recorder.samples == []
    assert broken not in ddp_comm_sampler.models


class SimpleModel:
    reducer = logger = None


def test_ten_samples_fit_into_five_minutes_of_any_step() -> None:
    for seconds in (0.001, 0.1, 1.0, 10.0):
        sampling, steps, samples = CommSampler(), 0, 0
        ddp_comm_sampler.models.add(model := Model())
        while steps * seconds < 300 or steps < 1000:
            steps += sampling.wait
            model.iteration += 1
            samples += isinstance(sampling.end_step(seconds, 0.0), Sample)
        assert 10 <= samples <= 10 + steps / min(MAX_INTERVAL_STEPS, max(2, 30 / seconds))


def test_a_pass_of_the_garbage_collector_is_reported_to_the_newest_listener() -> None:
    before = len(gc.callbacks)
    first, second = list[float](), list[float]()
    gc.disable()  # no passes but those of the test
    try:
        recorder_factory.watch_gc(first.append)
        gc.collect()
        recorder_factory.watch_gc(second.append)
        gc.collect()
        recorder_factory.watch_gc(lambda _: None)
    finally:
        gc.enable()
    assert len(first) == len(second) == 1
    assert second[0] > 0
    assert len(gc.callbacks) <= before + 1
