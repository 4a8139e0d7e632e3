"""Preflight checks of Kueue: its queues accept the job, and the number of jobs before it."""

from typing import Any

import pytest

from kubectl_ddp.engines import Engine
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight import controllers
from kubectl_ddp.preflight.controllers import check_engine_integration, check_local_queue, check_pending_jobs
from kubectl_ddp.preflight.model import Subject
from kubectl_ddp.util.finding import Severity
from kubectl_ddp.values.program import Gang
from kubectl_ddp.values.quantity import NodeRange
from tests.support.cluster_facts import a_subject, facts


def job(**more: Any) -> Subject:
    return a_subject(**{"queue": "team-queue", "engine": Engine.JOBSET, "nnodes": NodeRange(2, 2), **more})


def a_local(name: str = "team-queue", *, active: str = "True") -> Object:
    conditions = [{"type": "Active", "status": active, "message": "ClusterQueue is stopped"}]
    return {"metadata": {"name": name}, "spec": {"clusterQueue": "all"}, "status": {"conditions": conditions}}


def test_a_queue_that_is_not_there_is_said_with_those_that_are() -> None:
    [found] = check_local_queue(job(), facts(local_queues=[a_local("other")]))
    assert (found.severity, found.hint) == (Severity.ERROR, "There is other.")
    [bare] = check_local_queue(job(), facts(local_queues=[], has_kueue=False))
    assert "has no Kueue" in bare.hint


def test_a_queue_that_takes_no_jobs_says_why() -> None:
    [found] = check_local_queue(job(), facts(local_queues=[a_local(active="False")]))
    assert (found.severity, "ClusterQueue is stopped" in found.message) == (Severity.ERROR, True)
    assert "kubectl describe clusterqueue all" in found.hint
    [fine] = check_local_queue(job(), facts(local_queues=[a_local()]))
    assert fine.severity is Severity.OK


@pytest.mark.parametrize(
    ("found", "severity", "words"),
    [
        (None, Severity.ERROR, "WorkloadPriorityClass 'urgent' does not exist, so Kueue would not queue the job"),
        ({"value": 1000}, Severity.OK, "The WorkloadPriorityClass 'urgent' is there."),
    ],
)
def test_a_priority_in_the_queue_has_to_be_there(found: Object | None, severity: Severity, words: str) -> None:
    [text] = controllers.check_priority_class(job(queue_priority="urgent"), facts(queue_priority=found))
    assert (text.severity, words in text.message) == (severity, True)


@pytest.mark.parametrize(
    ("engine", "word"),
    [
        *((Engine.PYTORCHJOB, "kubeflow.org/pytorchjob"), (Engine.TRAINJOB, "trainer.kubeflow.org/trainjob")),
        *((Engine.JOBSET, "jobset.x-k8s.io/jobset"), (Engine.JOB, "batch/job")),
    ],
)
def test_a_kind_that_kueue_does_not_look_after_would_wait_for_ever(engine: Engine, word: str) -> None:
    assert list(check_engine_integration(job(engine=engine), facts(frameworks=frozenset({word})))) == []
    [found] = check_engine_integration(job(engine=engine), facts(frameworks=frozenset({"pod"})))
    assert (found.severity, word in found.hint) == (Severity.ERROR, True)


def test_the_number_of_those_before_and_the_next_of_them_are_said() -> None:
    def waiting(name: str) -> Object:
        return {"metadata": {"name": f"job-{name}", "namespace": "team", "ownerReferences": [{"name": name}]}}

    known = facts(local_queues=[a_local()], pending=[waiting("first"), waiting("second"), waiting("digits")])
    [found] = check_pending_jobs(job(), known)
    assert found.message == "2 jobs wait in the same queue; the next is team/first."
    [nothing] = check_pending_jobs(job(), facts(local_queues=[a_local()], pending=[]))
    assert nothing.severity is Severity.OK


def test_a_queue_of_another_scheduler_is_not_kueues() -> None:
    known = facts(local_queues=[], pending=[], frameworks=frozenset())
    for check in (check_local_queue, check_engine_integration, check_pending_jobs):
        assert list(check(job(gang=Gang.VOLCANO), known)) == []
