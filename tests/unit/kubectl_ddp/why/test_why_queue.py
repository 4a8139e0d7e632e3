"""The diagnosis of a job that waits in a queue of Kueue."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE as QUEUE
from kubectl_ddp.kube.objects import Object, Queued, RelatedKind
from kubectl_ddp.why.facts import Facts
from kubectl_ddp.why.model import Cause
from tests.support.diagnosed import facts, first
from tests.support.kube_objects import job


def workload(
    name: str, moment: str, priority: int, *conditions: str, space: str = "team", cluster: str = "lab", **spec: Any
) -> Object:
    owners = [{"uid": "u-1" if name == "mine" else name, "name": name}]
    held = [{"type": condition, "status": "True"} for condition in conditions]
    return {
        "metadata": {"name": name, "namespace": space, "creationTimestamp": moment, "ownerReferences": owners},
        "spec": {"queueName": "team", "priority": priority, "podSets": [{"count": 2}], **spec},
        "status": {"conditions": held, "admission": {"clusterQueue": cluster}},
    }


LOCAL_QUEUES = ({"metadata": {"name": "team", "namespace": "team"}, "spec": {"clusterQueue": "lab"}},)
OWN_WORKLOAD = workload("mine", "2026-01-02T03:05:00Z", 0)
WAITS = job("Suspended", run_policy={"suspend": True}, metadata={"labels": {QUEUE: "team"}})


def in_queue(*workloads: Object, clusters: tuple[Object, ...] = (), position: int | None = None) -> Facts:
    around: dict[RelatedKind, tuple[Object, ...]] = {
        RelatedKind.LOCAL_QUEUES: LOCAL_QUEUES,
        RelatedKind.WORKLOADS: workloads,
        RelatedKind.CLUSTER_QUEUES: clusters,
    }
    known = facts(WAITS, around=around)
    report = Queued("team", is_admitted=False, position=position)
    return dataclasses.replace(known, snapshot=dataclasses.replace(known.snapshot, queued=report))


def test_the_jobs_that_hold_quota_of_the_queue_are_named_with_their_namespace_and_size() -> None:
    held = "QuotaReserved"
    others = (
        workload("waits", "2026-01-02T03:07:00Z", 9),
        workload("holder", "2026-01-02T03:00:00Z", 3, "Admitted", held, "PodsReady", space="other"),
        workload("ended", "2026-01-02T03:00:00Z", 0, held, "Finished"),
        workload("elsewhere", "2026-01-02T03:00:00Z", 9, held, cluster="another"),
    )
    found = first(in_queue(OWN_WORKLOAD, *others))
    assert found.message == "It waits for quota in the queue 'team'."
    assert found.evidence == ("holds quota: holder in namespace other (2 pods, priority 3)",)
    many = [workload(f"holder-{number}", "2026-01-02T03:00:00Z", 0, held) for number in range(7)]
    assert first(in_queue(OWN_WORKLOAD, *many)).evidence[-1] == "holds quota: 2 more jobs"


@pytest.mark.parametrize(("position", "ahead"), [(None, ""), (1, ""), (4, ", 3 ahead of it")])
def test_the_number_of_those_ahead_is_kueues_own(position: int | None, ahead: str) -> None:
    assert first(in_queue(OWN_WORKLOAD, position=position)).message == f"It waits for quota in the queue 'team'{ahead}."


def told_by_kueue(text: str) -> Object:
    why = f"couldn't assign flavors to pod set main: {text}"
    reserved = {"type": "QuotaReserved", "status": "False", "message": why}
    return {**OWN_WORKLOAD, "status": {"conditions": [reserved]}}


@pytest.mark.parametrize(
    "text",
    [
        "podset slice topology cloud/block is above the podset topology cloud/rack",
        'Flavor "a100" does not contain the requested level',
    ],
)
def test_levels_that_no_flavor_has_are_not_waited_for(text: str) -> None:
    found = first(in_queue(told_by_kueue(text)))
    assert found.message == "It requests levels of --topology that the queue 'team' does not have."
    assert text in found.evidence[0]
    assert "a pack no narrower than replica" in found.hint
    waits = first(in_queue(told_by_kueue(f"{text}, insufficient unused quota for cpu in flavor h100, 1 more needed")))
    assert waits.message == "It waits for quota in the queue 'team'."


def test_a_queue_that_lets_nobody_go_is_named_with_its_reason() -> None:
    why = "Can't admit new workloads: references missing ResourceFlavor(s): a100."
    inactive = {"type": "Active", "status": "False", "message": why}
    stopped = {"metadata": {"name": "lab"}, "spec": {}, "status": {"conditions": [inactive]}}
    found = first(in_queue(OWN_WORKLOAD, clusters=(stopped,)))
    assert found.message == f"It waits in the queue 'team', which admits no job now: {why}"
    assert (found.subject, found.exit_code) == (Cause.QUEUED, 13)


def test_a_job_that_kueue_failed_to_start_waits_for_ever_and_is_queued_again_by_resume() -> None:
    conditions = [
        {"type": "Admitted", "status": "True"},
        {"type": "Finished", "status": "True", "reason": "FailedToStart", "message": "invalid admission check"},
    ]
    found = first(in_queue({**OWN_WORKLOAD, "status": {"conditions": conditions}}))
    assert (found.subject, "failed to start it" in found.message) == (Cause.QUEUED, True)
    assert "resume digits" in found.hint
    assert "invalid admission check" in found.evidence[0]
