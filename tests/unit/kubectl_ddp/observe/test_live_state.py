"""States for a display: metrics of a few pods, and the place in the queue, neither read more often than needed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import pytest

from kubectl_ddp.kube.objects import Object, Queued, Snapshot
from kubectl_ddp.observe.scrape import LiveState
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.status.job_state import JobState, State
from tests.support.clocks import Clock
from tests.support.kube_objects import job, job_metrics, pod, pod_metrics, rank_metrics, snapshot, terminated
from tests.support.scripted_backend import ScriptedBackend

RUNNING = snapshot(job("Created", "Running"), pod(0))
SUCCEEDED = snapshot(job("Created", "Succeeded"), pod(0, terminated(0)))
LARGE = snapshot(job("Created", "Running", replicas=100), *map(pod, range(100)))
QUEUED = replace(snapshot(job("Created", run_policy={"suspend": True})), queued=Queued("team", is_admitted=False))


class Counted(ScriptedBackend):
    """A backend that counts its requests, and whose pods report one more step at each scrape."""

    def __init__(self, moments: Sequence[Snapshot] = (RUNNING,), *, position: int | None = None) -> None:
        super().__init__(moments)
        self.scraped: list[str] = []
        self.read = 0
        self.position = position

    def metrics(self, pod: Object, families: Collection[str] = ()) -> str:
        self.scraped.append(pod["metadata"]["name"])
        return pod_metrics() + job_metrics() + rank_metrics(0, step=len(self.scraped))

    def job(self, name: str, *, events: bool = True) -> Snapshot:
        self.read += 1
        found = super().job(name, events=events)
        return replace(found, queued=replace(found.queued, position=self.position)) if found.queued else found


def test_pods_are_scraped_once_a_second_however_often_the_job_changes() -> None:
    clock, backend = Clock(0.0), Counted()
    live = LiveState(backend, clock)
    assert [live.of(RUNNING).step for _ in range(10)] == [1] * 10
    clock.now += 1.0
    assert live.of(RUNNING).step == 2


def test_of_many_pods_a_few_are_scraped() -> None:
    backend = Counted([LARGE])
    LiveState(backend).of(LARGE)
    assert sorted(backend.scraped) == [f"digits-worker-{index}" for index in range(8)]


def test_the_place_in_a_queue_is_read_every_five_seconds_and_only_there() -> None:
    clock, backend = Clock(0.0), Counted([QUEUED], position=3)
    live = LiveState(backend, clock)
    for _ in range(10):
        state = live.of(QUEUED)
        clock.now += 1.0
        assert state.queue == Queued("team", is_admitted=False, position=3)
    assert backend.read == 2
    live.of(RUNNING)
    assert backend.read == 2


@pytest.mark.parametrize("is_shown", [True, False])
def test_a_wait_scrapes_for_a_display_and_otherwise_not(*, is_shown: bool) -> None:
    backend, seen = Counted([RUNNING, SUCCEEDED]), list[JobState]()
    wait_for(backend, "digits", parse_wait_condition("complete"), seen=seen.append if is_shown else None)
    assert [state.state for state in seen] == [State.RUNNING, State.SUCCEEDED] * is_shown
    assert len(backend.scraped) == is_shown
