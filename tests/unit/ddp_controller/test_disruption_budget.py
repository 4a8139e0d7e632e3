"""PodDisruptionBudgets: a drain waits for a replacement, for a limited time."""

from __future__ import annotations

import pytest

from ddp_controller.pod_move import budget_of, budget_size, decide_budget, job_owner, orphaned_budgets
from ddp_controller.running_job import RunningJob
from kubectl_ddp.kube.objects import Object
from tests.unit.ddp_controller.controller_jobs import DRAINING, FINE, NOW, TIMING, moving, pod, root, seen, store

TWO = (pod(0), pod(1))
THREE = (*TWO, pod(2))
DRAINED = (pod(0, DRAINING), pod(1), pod(2))


def waiting(seconds: float) -> Object:
    """A spare for which no node has had room for so long."""
    return pod(3, "", ready=None, waits=seconds)


@pytest.mark.parametrize(("job", "pods", "left"), [
    pytest.param(root(), TWO, 2, id="no replacement yet: no eviction"),
    pytest.param(root(3, annotations=moving(2)), TWO, 3, id="the temporary pod is not there"),
    pytest.param(root(3, annotations=moving(2)), (*TWO, pod(2, ready=5)), 3, id="it has not settled"),
    pytest.param(root(3, annotations=moving(2)), THREE, 2, id="it has: one pod may leave"),
    pytest.param(root(3, spares=1), THREE, 2, id="a spare is ready"),
    pytest.param(root(3, spares=1), (*THREE, store(FINE)), 3, id="a drain would evict a pod and the store"),
    pytest.param(root(4, spares=1, nnodes="3"), (*DRAINED, pod(3), store(FINE)), 3, id="a drain, not of the store"),
    pytest.param(root(4, spares=1, nnodes="3"), (*DRAINED, pod(3), store(DRAINING)), 4, id="the store moves first"),
    pytest.param(root(3, spares=1), TWO, 3, id="the spare is missing"),
    pytest.param(root(3, nnodes="1:3", queue="team"), THREE, 1, id="cannot be enlarged: its minimum remains"),
    pytest.param(root(queue="team"), TWO, None, id="can neither grow nor shrink: a drain must not hang"),
    pytest.param(root(3, annotations=moving(2, seconds_ago=121)), TWO, None, id="no room for a replacement"),
    pytest.param(root(3, nnodes="1:2", annotations=moving(2, seconds_ago=121)), TWO, 1, id="with a range"),
    pytest.param(root(4, spares=1, nnodes="3"), (*DRAINED, pod(3)), 3, id="a drain, and a spare is ready"),
    pytest.param(root(4, spares=1, nnodes="3"), (*DRAINED, waiting(119)), 4, id="a drain, and a spare is expected"),
    pytest.param(root(4, spares=1, nnodes="3"), (*DRAINED, waiting(121)), None, id="no room: the drain ends"),
    pytest.param(root(4, spares=1, nnodes="2:3"), (*DRAINED, waiting(121)), 2, id="the same, with a range"),
    pytest.param(root(4, spares=1, nnodes="3"), (*THREE, waiting(121)), 4, id="no room for it, and no drain"),
    pytest.param(root(suspended=True), TWO, None, id="suspended"),
    pytest.param(root(), (), None, id="no pods yet"),
])  # fmt: skip
def test_an_eviction_must_leave_so_many_pods(job: Object, pods: tuple[Object, ...], left: int | None) -> None:
    assert budget_size(seen(job, *pods), NOW, TIMING) == left


def stored(size: int, namespace: str = "team") -> Object:
    job = seen(root(), *TWO)
    made = budget_of(job, size, job_owner(job))
    return made | {"metadata": made["metadata"] | {"namespace": namespace, "uid": "b"}}


def minimum(job: RunningJob, *budgets: Object) -> int | None:
    """Return the pods that an eviction must leave after the change that is decided; None if the budget is deleted."""
    made = decide_budget(job, budgets, NOW, TIMING)
    assert made is not None
    return made.min_available


def test_the_budget_is_changed_only_where_it_differs() -> None:
    job = seen(root(), *TWO)
    assert minimum(job) == 2
    assert decide_budget(job, [stored(2)], NOW, TIMING) is None
    assert decide_budget(job, [stored(1)], NOW, TIMING) == decide_budget(job, [], NOW, TIMING)
    assert minimum(seen(root(suspended=True), pod(0, DRAINING)), stored(2)) is None


@pytest.mark.parametrize("labels", [{"ddp.dev/job": "digits"}, {"job-name": "digits"}, {"index": "1"}])
def test_a_budget_of_somebody_else_over_the_same_pods_comes_first(labels: dict[str, str]) -> None:
    """The eviction API refuses a pod that two budgets select."""
    pods = pod(0), pod(1)
    pods[1]["metadata"]["labels"]["index"] = "1"
    job = seen(root(), *pods)
    foreign: Object = {"metadata": {"name": "own", "namespace": "team"}}
    foreign["spec"] = {"selector": {"matchLabels": labels}}
    assert decide_budget(job, [foreign], NOW, TIMING) is None
    assert minimum(job, foreign, stored(2)) is None
    foreign["spec"] = {"selector": {"matchLabels": {"app": "other"}}}
    assert decide_budget(job, [foreign, stored(2)], NOW, TIMING) is None


def test_a_budget_of_somebody_else_keeps_its_name() -> None:
    job, foreign = seen(root(), *TWO), {"metadata": {"name": "ddp-digits", "namespace": "team"}}
    assert decide_budget(job, [foreign], NOW, TIMING) is None


def test_a_budget_of_an_earlier_job_of_the_same_name_protects_nothing() -> None:
    job = seen(root(), *TWO)
    earlier = stored(2)
    earlier["spec"]["selector"]["matchLabels"]["ddp.dev/run-id"] = "r0"
    assert minimum(job, earlier) == 2


def test_budgets_without_a_job_are_orphans() -> None:
    foreign: Object = {"metadata": {"name": "ddp-x", "namespace": "team"}}
    assert orphaned_budgets([stored(2), foreign], [seen(root(), *TWO)]) == []
    orphans = orphaned_budgets([stored(2, "other"), foreign], [])
    assert [orphan["metadata"]["namespace"] for orphan in orphans] == ["other"]
