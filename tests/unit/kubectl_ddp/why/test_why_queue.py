"""What is said of a job that waits in a queue of Kueue's."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE as QUEUE
from kubectl_ddp.kube.objects import Object, Queued
from kubectl_ddp.kube.related_objects import RelatedKind
from kubectl_ddp.why.facts import Facts
from kubectl_ddp.why.model import Cause
from tests.support.diagnosed import facts, first
from tests.support.kube_objects import job


def workload(name: str, moment: str, priority: int, *conditions: str, space: str = "team", **spec: Any) -> Object:
    return {
        "metadata": {
            "name": name,
            "namespace": space,
            "creationTimestamp": moment,
            "ownerReferences": [{"uid": "u-1" if name == "mine" else name, "name": name}],
        },
        "spec": {"queueName": "team", "priority": priority, "podSets": [{"count": 2}], **spec},
        "status": {
            "conditions": [{"type": each, "status": "True"} for each in conditions],
            "admission": {"clusterQueue": "lab"},
        },
    }


LOCAL_QUEUES = (
    # Of another namespace, and first in the list: the same name means nothing.
    {"metadata": {"name": "team", "namespace": "other"}, "spec": {"clusterQueue": "elsewhere"}},
    {"metadata": {"name": "team", "namespace": "team"}, "spec": {"clusterQueue": "lab"}},
)
MINE = workload("mine", "2026-01-02T03:05:00Z", 0)
WAITS = job("Suspended", run_policy={"suspend": True}, metadata={"labels": {QUEUE: "team"}})


def in_queue(*workloads: Object, clusters: tuple[Object, ...] = (), position: int | None = None) -> Facts:
    around: dict[RelatedKind, tuple[Object, ...]] = {
        RelatedKind.LOCAL_QUEUES: LOCAL_QUEUES,
        RelatedKind.WORKLOADS: workloads,
        RelatedKind.CLUSTER_QUEUES: clusters,
    }
    known = facts(WAITS, around=around)
    told = Queued("team", is_admitted=False, position=position)
    return dataclasses.replace(known, snapshot=dataclasses.replace(known.snapshot, queued=told))


def test_who_waits_before_a_job_is_told_by_priority_and_age_and_not_by_the_order_of_conditions() -> None:
    found = first(
        in_queue(
            MINE,
            workload("later", "2026-01-02T03:06:00Z", 0),
            workload("important", "2026-01-02T03:07:00Z", 9),
            workload("given-up", "2026-01-02T03:00:00Z", 9, active=False),
            workload("holder", "2026-01-02T03:00:00Z", 0, "Admitted", "QuotaReserved", "PodsReady"),
            workload("ended", "2026-01-02T03:00:00Z", 0, "QuotaReserved", "Finished"),
            workload("elsewhere", "2026-01-02T03:00:00Z", 9, space="other"),
        )
    )
    assert found.message == "It waits for quota in the queue 'team', 1 ahead of it."
    assert found.evidence == (
        "ahead of it: important in namespace team (2 pods, priority 9)",
        "holds quota: holder in namespace team (2 pods, priority 0)",
    )


def test_kueues_own_word_of_the_place_counts_where_jobs_of_others_may_not_be_seen() -> None:
    known = in_queue(MINE, workload("important", "2026-01-02T03:07:00Z", 9), position=4)
    assert first(known).message == "It waits for quota in the queue 'team', 3 ahead of it."
    assert "ahead of it: 2 that may not be seen" in first(known).evidence


def told_by_kueue(text: str) -> Object:
    reserved = {
        "type": "QuotaReserved",
        "status": "False",
        "message": f"couldn't assign flavors to pod set main: {text}",
    }
    return {**MINE, "status": {"conditions": [reserved]}}


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
    stopped = {
        "metadata": {"name": "lab"},
        "spec": {},
        "status": {"conditions": [{"type": "Active", "status": "False", "message": why}]},
    }
    found = first(in_queue(MINE, clusters=(stopped,)))
    assert found.message == f"It waits in the queue 'team', which admits no job now: {why}"
    assert (found.subject, found.exit_code) == (Cause.QUEUED, 13)
