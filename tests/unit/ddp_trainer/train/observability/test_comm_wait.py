"""The time of a step: its phases, and the waits within them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.pipelining import schedules

from ddp_trainer.common.parallel_dims import Layout
from ddp_trainer.common.time_classes import Phase, Section, Wait
from ddp_trainer.process.recorder import NoopRankRecorder
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.mesh.device_mesh import Mesh
from ddp_trainer.train.observability.step_timer import CommWaits, StepTimer, StreamWaits
from ddp_trainer.train.parallel.factory import measure_waits
from ddp_trainer.train.parallel.pp import pp_zero
from ddp_trainer.train.parallel.pp.pp_zero import StageZero
from ddp_trainer.train.parallel.pp.stage_transfer import WAIT, time_transfers
from tests.support.clocks import Clock


class Heard(NoopRankRecorder):
    """Records waits and phases."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[dict[Wait, float]] = []
        self.phases: dict[Phase, float] = {}

    def step(self, step: int, epoch: int, samples: int, *seconds: float) -> None:  # type: ignore[override]
        del step, epoch, samples
        self.phases = dict(zip(Phase, seconds, strict=True))

    def record_wait(self, seconds: Mapping[Wait, float]) -> None:
        self.waits.append(dict(seconds))


@pytest.fixture
def phases(clock: Clock) -> StepTimer:
    made = StepTimer(clock)
    made.expect([Wait.STAGE, Wait.REDUCE_SCATTER])
    made.restart()
    return made


def test_waiting_is_taken_out_of_the_phase_it_happened_in(clock: Clock, phases: StepTimer) -> None:
    waits, recorder = CommWaits(phases), Heard()
    clock.now += 1.0
    with waits.during(Wait.STAGE):
        clock.now += 0.5
    clock.now += 0.25
    phases.end_phase(Phase.BACKWARD)
    assert phases.report(recorder, step=1, epoch=0, samples=8) == 1.75
    assert (recorder.phases[Phase.BACKWARD], recorder.phases[Phase.COMM_EXPOSED]) == (1.25, 0.5)
    assert recorder.waits == [{Wait.STAGE: 0.5, Wait.REDUCE_SCATTER: 0.0}]


def test_an_extended_wait_is_reported_as_a_whole(clock: Clock, phases: StepTimer) -> None:
    waits, recorder = CommWaits(phases), Heard()
    with waits.during(Wait.REDUCE_SCATTER):
        clock.now += 0.5
    clock.now += 0.25
    waits.extend_wait(Wait.REDUCE_SCATTER)
    phases.end_phase(Phase.BACKWARD)
    phases.report(recorder, step=1, epoch=0, samples=8)
    assert recorder.waits[-1][Wait.REDUCE_SCATTER] == recorder.phases[Phase.COMM_EXPOSED] == 0.75


def test_what_is_waited_for_in_an_evaluation_is_no_part_of_a_step(clock: Clock, phases: StepTimer) -> None:
    waits, recorder = CommWaits(phases), Heard()
    phases.end_phase(Phase.OTHER)
    phases.enter(Section.EVALUATION)
    with waits.during(Wait.STAGE):
        clock.now += 4.0
    phases.record_evaluation()
    assert phases.non_step_seconds[2] == 4.0
    with waits.during(Wait.STAGE):
        clock.now += 0.5
    phases.report(recorder, step=1, epoch=0, samples=8)
    assert recorder.waits[-1][Wait.STAGE] == 0.5


def test_a_step_begins_without_the_waits_of_the_one_before(clock: Clock, phases: StepTimer) -> None:
    waits, recorder = CommWaits(phases), Heard()
    for seconds in (0.5, 0.25):
        with waits.during(Wait.STAGE):
            clock.now += seconds
        phases.report(recorder, step=1, epoch=0, samples=8)
    assert [seconds_by_wait[Wait.STAGE] for seconds_by_wait in recorder.waits] == [0.5, 0.25]


def test_ranks_that_share_no_model_are_not_asked_what_they_wait_for(clock: Clock) -> None:
    recorder, phases = Heard(), StepTimer(clock)
    waits = measure_waits(torch.nn.Linear(1, 1), Layout(replicate=4), Group.single_rank(), phases, recorder)
    with waits.during(Wait.STAGE):
        clock.now += 1.0
    phases.report(recorder, step=1, epoch=0, samples=8)
    assert recorder.waits == []


def test_schedules_wait_in_the_timed_function(clock: Clock, phases: StepTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The name is private: if torch drops it, no bubble is measured."""
    assert "work" in getattr(schedules, WAIT).__code__.co_varnames
    done: list[Any] = []

    def transferred(work: Any) -> None:
        clock.now += 0.5
        done.append(work)

    monkeypatch.setattr(schedules, WAIT, transferred)
    with time_transfers(CommWaits(phases)):
        getattr(schedules, WAIT)(["work"])
        getattr(schedules, WAIT)([])
    assert getattr(schedules, WAIT) is transferred
    assert done == [["work"]]
    recorder = Heard()
    phases.report(recorder, step=1, epoch=0, samples=8)
    assert recorder.waits[-1][Wait.STAGE] == 0.5


class Stream:
    """A simulated GPU stream: work takes its time when :meth:`run` is called."""

    def __init__(self) -> None:
        self.at = 7.0
        self._given: list[float | Moment] = []

    def give(self, seconds: float) -> None:
        self._given.append(seconds)

    def mark(self) -> Moment:
        made = Moment()
        self._given.append(made)
        return made

    def run(self) -> None:
        for item in self._given:
            if isinstance(item, Moment):
                item.at = self.at
            else:
                self.at += item
        self._given.clear()


class Moment:
    """An event of such a stream; its time is unknown until the stream has reached it."""

    at: float | None = None

    def query(self) -> bool:
        return self.at is not None

    def elapsed_time(self, end: Moment) -> float:
        return (end.at - self.at) * 1e3


def test_a_stream_waits_by_its_own_clock_and_is_asked_when_it_has_come_so_far(clock: Clock) -> None:
    phases, stream, recorder = StepTimer(clock), Stream(), Heard()
    waits = StreamWaits(phases, stream.mark)
    phases.expect(Wait, waits.known)
    with waits.during(Wait.STAGE):
        stream.give(8.0)  # no part of a step
    phases.restart()
    stream.give(2.0)
    with waits.during(Wait.STAGE):
        stream.give(0.5)
    stream.give(2.0)
    with waits.during(Wait.REDUCE_SCATTER):
        stream.give(0.25)
    stream.run()
    with waits.during(Wait.STAGE):
        stream.give(0.125)
    clock.now += 1.0
    phases.end_phase(Phase.BACKWARD)
    phases.report(recorder, step=1, epoch=0, samples=8)
    assert (recorder.phases[Phase.BACKWARD], recorder.phases[Phase.COMM_EXPOSED]) == (1.0, 0.0)
    stream.run()
    phases.report(recorder, step=2, epoch=0, samples=8)
    assert recorder.waits == [
        {Wait.ALL_GATHER: 0.0, Wait.REDUCE_SCATTER: 0.25, Wait.STAGE: 0.5},
        {Wait.ALL_GATHER: 0.0, Wait.REDUCE_SCATTER: 0.0, Wait.STAGE: 0.125},
    ]


@pytest.mark.parametrize(
    ("layout", "expected"),
    [(Layout(shard=2), []), (Layout(shard=2, pp=2), [dict.fromkeys(Wait, 0.0)])],
    ids=["shard", "shard,pp"],
)
def test_a_gpu_times_the_waits_of_stages_alone(clock: Clock, layout: Layout, expected: list[dict[Wait, float]]) -> None:
    recorder = Heard()
    group = Group(0, 1, "none", torch.device("cuda"))
    waits = measure_waits(torch.nn.Linear(1, 1), layout, group, StepTimer(clock), recorder)
    assert recorder.waits == expected
    assert isinstance(waits, StreamWaits) == bool(expected)


@pytest.fixture
def alone() -> Iterator[Mesh]:
    """A mesh of one rank, which has all shards."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        layout, mesh = Layout(shard=1, pp=2), init_device_mesh("cpu", (1,), mesh_dim_names=("shard",))
        yield Mesh(layout, layout.place(0), mesh, {"shard": "shard"})
    finally:
        dist.destroy_process_group()


def test_stages_wait_for_their_pieces_and_gradients(clock: Clock, alone: Mesh, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(seconds: float, home: ModuleType, name: str) -> None:
        inner: Callable[..., Any] = getattr(home, name)

        def collective(*args: Any, **options: Any) -> Any:
            clock.now += seconds
            return inner(*args, **options)

        monkeypatch.setattr(home, name, collective)

    slow(0.5, pp_zero, "ALL_GATHER")
    slow(0.25, pp_zero, "REDUCE_SCATTER")
    slow(0.125, dist, "all_reduce")
    model, recorder, phases = torch.nn.Linear(3, 1), Heard(), StepTimer(clock)
    phases.expect(Wait)
    phases.restart()
    waits = CommWaits(phases)
    pieces = StageZero(model, [model], alone, Group.single_rank())
    with pieces.full_weights():
        clock.now += 1.0
    phases.record_evaluation()
    pieces.gather(waits)
    phases.end_phase(Phase.DATA_WAIT)
    model(torch.ones(1, 3)).sum().backward()
    pieces.reduce_scatter_grads(waits)
    phases.report(recorder, step=1, epoch=0, samples=1)
    of_bias = 0.125  # one number, which is not cut
    assert recorder.waits == [{Wait.ALL_GATHER: 0.5, Wait.REDUCE_SCATTER: 0.25 + of_bias, Wait.STAGE: 0.0}]
    assert (recorder.phases[Phase.COMM_EXPOSED], recorder.phases[Phase.DATA_WAIT]) == (0.875, 0.0)


def test_phases_add_up_to_the_time_that_passed() -> None:
    clock, recorder = Clock(), Heard()
    phases = StepTimer(clock)
    for phase, seconds in ((Phase.FORWARD, 2.0), (Phase.BACKWARD, 3.0), (Phase.FORWARD, 1.0), (Phase.CHECKPOINT, 4.0)):
        clock.now += seconds
        phases.end_phase(phase)
    clock.now += 0.5
    assert phases.report(recorder, step=1, epoch=0, samples=8) == 10.5
    assert [*recorder.phases.values()] == [0.0, 0.0, 3.0, 3.0, 0.0, 0.0, 4.0, 0.5]
    assert phases.non_step_seconds == (0.0, 4.0, 0.0)
    clock.now += 2.0
    phases.record_evaluation()
    assert phases.non_step_seconds == (0.0, 4.0, 2.0)
