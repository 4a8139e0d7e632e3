"""Asking pods for their metrics."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator

import pytest

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.scrape import observe_all, scrape, scrape_all
from kubectl_ddp.status.job_tables import job_table
from tests.support.diagnosed import NOW
from tests.support.kube_objects import job, job_metrics, pod, pod_metrics, rank_metrics, snapshot, terminated, waiting
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
    samples = scrape(ScriptedBackend([], metrics=[{"digits-worker-1": pod_metrics()}]), shown)
    assert samples.keys() == {"digits-worker-1"}


def test_a_slow_pod_holds_nobody_up(slow: SlowBackend) -> None:
    shown = [snapshot(job(), pod(0)), snapshot(job(), pod(0), pod(1))]
    report = scrape_all(slow, shown, timeout=1.0)
    assert [one.keys() for one in report] == [{"digits-worker-0"}, {"digits-worker-0"}]
    assert [state.silent for state in observe_all(slow, shown, timeout=0.1)] == [(), ("digits-worker-1",)]


def test_a_table_needs_fewer_families_and_is_the_same() -> None:
    class Requests(ScriptedBackend):
        def metrics(self, pod: Object, families: Collection[str] = ()) -> str:
            wanted = {str(family) for family in families}
            lines = (pod_metrics() + rank_metrics(0) + job_metrics()).splitlines(keepends=True)
            return "".join(line for line in lines if line.partition("{")[0].partition(" ")[0] in wanted)

    shown = [snapshot(job(), pod(0))]
    few, every = (observe_all(Requests([]), shown, for_table=for_table) for for_table in (True, False))
    tables = [job_table(states, NOW, wide=True).rows for states in (few, every)]
    assert tables[0] == tables[1]
    assert (few[0].loss, few[0].epoch, every[0].epoch) == (0.5, None, 1)
