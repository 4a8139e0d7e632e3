"""Asking pods for their metrics."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator

import pytest

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.scrape import observe_all, scrape, scrape_all
from tests.support.kube_objects import job, pod, pod_metrics, rank_metrics, snapshot, terminated, waiting
from tests.support.scripted_backend import ScriptedBackend


class SlowBackend(ScriptedBackend):
    """One of its pods does not answer before it is let go."""

    def __init__(self, slow: str) -> None:
        super().__init__([])
        self.slow = slow
        self.let_go = threading.Event()

    def metrics(self, pod: Object, families: Collection[str] = ()) -> str:
        if pod["metadata"]["name"] == self.slow:
            self.let_go.wait()
        return rank_metrics(0)


@pytest.fixture
def slow() -> Iterator[SlowBackend]:
    backend = SlowBackend("digits-worker-1")
    yield backend
    backend.let_go.set()


def test_running_workers_are_asked_and_no_other_pods() -> None:
    shown = snapshot(job(), pod(0), pod(1, waiting()), pod(2, terminated(0)), pod(0, role="store"))
    page = {f"digits-worker-{index}": pod_metrics() for index in range(3)} | {"digits-store-0": pod_metrics()}
    assert scrape(ScriptedBackend([], metrics=[page]), shown).keys() == {"digits-worker-0"}


def test_pods_that_do_not_answer_are_left_out() -> None:
    shown = snapshot(job(), pod(0), pod(1))
    told = scrape(ScriptedBackend([], metrics=[{"digits-worker-1": pod_metrics()}]), shown)
    assert told.keys() == {"digits-worker-1"}


def test_a_slow_pod_holds_nobody_up(slow: SlowBackend) -> None:
    shown = [snapshot(job(), pod(0)), snapshot(job(), pod(0), pod(1))]
    told = scrape_all(slow, shown, patience=1.0)
    assert [one.keys() for one in told] == [{"digits-worker-0"}, {"digits-worker-0"}]
    assert [state.silent for state in observe_all(slow, shown, patience=0.1)] == [(), ("digits-worker-1",)]


def test_more_pods_than_are_asked_at_once_all_answer() -> None:
    class Quick(ScriptedBackend):
        def metrics(self, pod: Object, families: Collection[str] = ()) -> str:
            return rank_metrics(int(pod["metadata"]["name"].rpartition("-")[2]))

    shown = snapshot(job(), *(pod(index) for index in range(50)))
    (state,) = observe_all(Quick([]), [shown])
    assert [rank.rank for rank in state.ranks] == list(range(50))
