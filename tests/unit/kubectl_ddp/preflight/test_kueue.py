"""What Kueue will do with a job."""

import dataclasses
from typing import Any

import pytest

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.kueue import (
    check_engine_integration,
    check_local_queue,
    check_pending_jobs,
    check_priority_class,
)
from kubectl_ddp.preflight.model import Subject
from kubectl_ddp.preflight.queue_quota import admission_of, check_free_quota, check_queue_quota
from kubectl_ddp.util.finding import Finding, Severity
from kubectl_ddp.values.engine import Engine, Gang
from kubectl_ddp.values.quantity import Nodes
from tests.support.cluster_facts import a_subject, facts

GPU = "nvidia.com/gpu"


def job(**more: Any) -> Subject:
    return a_subject(**{"queue": "team-queue", "engine": Engine.JOBSET, "nnodes": Nodes(2, 2), **more})


def a_local(name: str = "team-queue", *, active: str = "True") -> Object:
    conditions = [{"type": "Active", "status": active, "message": "ClusterQueue is stopped"}]
    return {"metadata": {"name": name}, "spec": {"clusterQueue": "all"}, "status": {"conditions": conditions}}


def a_cluster_queue(*flavors: dict[str, str], **spec: Any) -> Object:
    named = [
        {"name": f"f{n}", "resources": [{"name": name, "nominalQuota": quota} for name, quota in flavor.items()]}
        for n, flavor in enumerate(flavors)
    ]
    group = {"coveredResources": list(flavors[0]), "flavors": named}
    return {"metadata": {"name": "all"}, "spec": {"resourceGroups": [group], **spec}}


def test_a_queue_that_is_not_there_is_said_with_those_that_are() -> None:
    [found] = check_local_queue(job(), facts(local_queues=[a_local("other")]))
    assert (found.severity, found.hint) == (Severity.ERROR, "There is other.")
    [bare] = check_local_queue(job(), facts(local_queues=[], has_kueue=False))
    assert "has no Kueue" in bare.hint


def test_a_queue_that_takes_no_jobs_says_why() -> None:
    [found] = check_local_queue(job(), facts(local_queues=[a_local(active="False")]))
    assert (found.severity, "ClusterQueue is stopped" in found.message) == (Severity.ERROR, True)
    [fine] = check_local_queue(job(), facts(local_queues=[a_local()]))
    assert fine.severity is Severity.OK


@pytest.mark.parametrize(
    ("found", "severity", "words"),
    [
        (None, Severity.ERROR, "There is no WorkloadPriorityClass 'urgent', and Kueue does not queue a job"),
        ({"value": 1000}, Severity.OK, "The WorkloadPriorityClass 'urgent' is there."),
    ],
)
def test_a_priority_in_the_queue_has_to_be_there(found: Object | None, severity: Severity, words: str) -> None:
    [said] = check_priority_class(job(queue_priority="urgent"), facts(queue_priority=found))
    assert (said.severity, words in said.message) == (severity, True)


@pytest.mark.parametrize(
    ("engine", "word"),
    [
        (Engine.PYTORCHJOB, "kubeflow.org/pytorchjob"),
        (Engine.TRAINJOB, "trainer.kubeflow.org/trainjob"),
        (Engine.JOBSET, "jobset.x-k8s.io/jobset"),
        (Engine.JOB, "batch/job"),
    ],
)
def test_a_kind_that_kueue_does_not_look_after_would_wait_for_ever(engine: Engine, word: str) -> None:
    assert list(check_engine_integration(job(engine=engine), facts(frameworks=frozenset({word})))) == []
    [found] = check_engine_integration(job(engine=engine), facts(frameworks=frozenset({"pod"})))
    assert (found.severity, word in found.hint) == (Severity.ERROR, True)


def quota(queue: Object, **more: Any) -> Finding:
    [found] = check_queue_quota(job(**more), facts(local_queues=[a_local()], cluster_queues=[queue]))
    return found


ENOUGH = {"cpu": "4", "memory": "4Gi"}


def test_one_flavor_has_to_have_all_of_it() -> None:
    assert quota(a_cluster_queue(ENOUGH)).severity is Severity.OK
    assert quota(a_cluster_queue({"cpu": "3", "memory": "9Gi"}, ENOUGH)).severity is Severity.OK
    halves = quota(a_cluster_queue({"cpu": "4", "memory": "1Gi"}, {"cpu": "1", "memory": "4Gi"}))
    assert (halves.severity, "the flavor 'f0' has 1Gi memory of 4Gi memory" in halves.message) == (Severity.ERROR, True)


def test_of_an_indexed_job_the_least_number_of_nodes_is_enough() -> None:
    half = a_cluster_queue({"cpu": "2", "memory": "2Gi"})
    never = quota(half, nnodes=Nodes(1, 2))
    assert (never.severity, "--nnodes 1," in never.hint) == (Severity.ERROR, True)
    assert quota(half, nnodes=Nodes(1, 1), engine=Engine.JOB).severity is Severity.OK


def test_a_maximum_that_no_quota_can_grant_is_a_warning_with_the_largest_size_and_a_minimum_an_error() -> None:
    queue = a_cluster_queue({"cpu": "6", "memory": "90Gi"})
    wide = quota(queue, nnodes=Nodes(2, 8), engine=Engine.JOB)
    assert (wide.severity, "never admit more than 3 of 8 nodes" in wide.message) == (Severity.WARNING, True)
    assert "6 cpu of 16 cpu" in wide.message
    assert "--nnodes 2:3" in wide.hint
    never = quota(queue, nnodes=Nodes(4, 8), engine=Engine.JOB)
    assert (never.severity, "never admit 4 nodes" in never.message, "--nnodes 3" in never.hint) == (
        Severity.ERROR,
        True,
        True,
    )


def test_the_borrowing_limit_counts_in_what_a_cohort_may_lend() -> None:
    queue = a_cluster_queue({"cpu": "2", "memory": "90Gi"}, cohortName="all")
    queue["spec"]["resourceGroups"][0]["flavors"][0]["resources"][0]["borrowingLimit"] = "2"
    assert quota(queue, nnodes=Nodes(2, 2)).severity is Severity.WARNING, "2 of 4 cpu are to be borrowed"
    never = quota(queue, nnodes=Nodes(3, 3))
    assert (never.severity, "4 cpu (2 nominal and a borrowing limit of 2) of 6 cpu" in never.message) == (
        Severity.ERROR,
        True,
    )


def told_of_quota(used: str, waiting: tuple[Object, ...] = (), **more: Any) -> Finding:
    """Return the finding about quota that is free now, in a queue of 8 cpu."""
    queue = a_cluster_queue({"cpu": "8", "memory": "90Gi"})
    queue["status"] = {"flavorsReservation": [{"name": "f0", "resources": [{"name": "cpu", "total": used}]}]}
    assigned = {"count": 4, "flavors": {"cpu": "f0"}, "resourceUsage": {"cpu": used}}
    holder = a_workload("holder", {"admission": {"clusterQueue": "all", "podSetAssignments": [assigned]}})
    holder["status"]["conditions"] = [{"type": "QuotaReserved", "status": "True"}]
    subject = job(**more)
    known = facts(local_queues=[a_local()], cluster_queues=[queue], workloads=[holder, *waiting])
    waits_for = admission_of(subject, known)
    assert waits_for is not None
    admission, holders = waits_for
    [found] = check_free_quota(subject, dataclasses.replace(known, forecast=admission.forecast(holders)))
    return found


def a_workload(name: str, status: Object, *, cpu: str = "2", priority: int = 0) -> Object:
    template = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}]}}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "ownerReferences": [{"name": name, "uid": name, "kind": "Job"}],
        },
        "spec": {
            "queueName": "team-queue",
            "priority": priority,
            "podSets": [{"name": "main", "count": 1, "template": template}],
        },
        "status": status,
    }


def test_quota_that_is_taken_names_its_holder_and_the_size_that_would_start_now() -> None:
    assert told_of_quota("2").severity is Severity.OK
    found = told_of_quota("6")
    assert found.severity is Severity.WARNING
    assert "8 cpu, 6 used, 2 free, 4 requested. There is enough when team/holder ends" in found.message
    assert found.hint == "It waits until then; --nnodes 1 would start now."
    assert told_of_quota("6", nnodes=Nodes(1, 2), engine=Engine.JOB).severity is Severity.OK, "one node is enough"
    assert told_of_quota("6", nnodes=Nodes(2, 3), engine=Engine.JOB).hint.endswith("--nnodes 1:3 would start now.")
    assert told_of_quota("8").hint == "It waits until then."


def test_jobs_that_wait_ahead_take_the_free_quota_first() -> None:
    waiting = a_workload("waiting", {}, cpu="5")
    assert "as jobs wait ahead of it" in told_of_quota("2", (waiting,)).message
    lower = a_workload("waiting", {}, cpu="5", priority=-1)
    assert told_of_quota("2", (lower,)).severity is Severity.OK


def test_a_resource_without_any_quota_is_named() -> None:
    found = quota(a_cluster_queue(ENOUGH), gpus=2)
    assert (found.severity, GPU in found.message) == (Severity.ERROR, True)


def test_what_a_cohort_may_lend_is_not_never() -> None:
    poor = {"cpu": "1", "memory": "1Gi"}
    for spec in ({"cohortName": "all"}, {"cohort": "all"}):
        assert quota(a_cluster_queue(poor, **spec)).severity is Severity.WARNING


def test_the_number_of_those_before_and_the_next_of_them_are_said() -> None:
    def waiting(name: str) -> Object:
        return {"metadata": {"name": f"job-{name}", "namespace": "team", "ownerReferences": [{"name": name}]}}

    known = facts(local_queues=[a_local()], pending=[waiting("first"), waiting("second"), waiting("digits")])
    [found] = check_pending_jobs(job(), known)
    assert found.message == "2 jobs wait in the same queue; the next is team/first."
    [nobody] = check_pending_jobs(job(), facts(local_queues=[a_local()], pending=[]))
    assert nobody.severity is Severity.OK


def test_a_queue_of_another_scheduler_is_not_kueues() -> None:
    known = facts(local_queues=[], cluster_queues=[], pending=[], frameworks=frozenset())
    for check in (check_local_queue, check_engine_integration, check_queue_quota, check_free_quota, check_pending_jobs):
        assert list(check(job(gang=Gang.VOLCANO), known)) == []
