"""What is looked at every so many steps."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from ddp_trainer.metrics.record import ddp_comm_sampler, recorder_factory
from ddp_trainer.metrics.record.ddp_comm_sampler import MOST_STEPS, STOCK_RATE, CommSampler, Sample
from ddp_trainer.metrics.record.sampler import Watch


class Model:
    """Has DDP's timer, as torch's bindings show it; ``tests/local/metrics/test_metrics_hooks.py`` asks torch's own."""

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


def test_a_sampled_step_is_split_into_busy_and_exposed() -> None:
    recorder, model = Heard(), Model(exposed=0.25)
    ddp_comm_sampler.models.add(model)
    run(Watch(recorder), [model], 50)
    assert set(recorder.samples) == {(0.75, 0.25)}
    assert 2 <= len(recorder.samples) <= 10
    assert model.rate == STOCK_RATE, "between samples DDP times as often as ever"


def test_the_share_of_the_forward_pass_comes_from_the_timer() -> None:
    model = Model()
    ddp_comm_sampler.models.add(model)
    run(watch := Watch(Heard()), [model], 20)
    assert watch.forward_share == 0.25
    assert Watch(Heard()).forward_share == 1.0, "not known without a sample"


def test_two_models_are_waited_for_one_after_the_other() -> None:
    recorder, models = Heard(), [Model(0.25), Model(0.5)]
    ddp_comm_sampler.models.update(models)
    run(Watch(recorder), models, 50)
    assert set(recorder.samples) == {(0.25, 0.75)}


def test_a_step_of_several_passes_waits_in_each() -> None:
    recorder, model = Heard(), Model(exposed=0.125, passes=4)
    ddp_comm_sampler.models.add(model)
    run(Watch(recorder), [model], 50)
    assert set(recorder.samples) == {(0.5, 0.5)}


def test_nobody_waits_longer_than_a_step_takes() -> None:
    recorder, model = Heard(), Model(exposed=9.0)
    ddp_comm_sampler.models.add(model)
    run(Watch(recorder), [model], 20)
    assert set(recorder.samples) == {(0.0, 1.0)}


def test_what_a_loop_knows_of_its_waiting_is_added_to_what_ddp_knows() -> None:
    recorder, model = Heard(), Model(exposed=0.25)
    ddp_comm_sampler.models.add(model)
    run(Watch(recorder), [model], 20, waited=0.125)
    assert set(recorder.samples) == {(0.625, 0.375)}


def test_a_loop_without_ddp_tells_by_itself_what_it_waits_for() -> None:
    recorder = Heard()
    run(Watch(recorder), [], 50, waited=0.5)
    assert set(recorder.samples) == {(0.5, 0.5)}


def test_nothing_is_claimed_where_nothing_is_known() -> None:
    recorder = Heard()
    run(Watch(recorder), [], 500)
    run(Watch(recorder, waits_are_told=False), [], 500, waited=0.5)
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
        assert samples >= 10
        assert samples <= 10 + steps / min(MOST_STEPS, max(2, 30 / seconds)), "and not many more"


def test_a_pass_of_the_garbage_collector_is_heard_by_the_last_one_that_asked() -> None:
    before = len(gc.callbacks)
    first: list[float] = []
    second: list[float] = []
    gc.disable()  # passes that nobody asked for would be counted, too
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
