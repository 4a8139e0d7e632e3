"""What is said of a job that waits in a queue of Kueue's."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from kubectl_ddp.errors import Forbidden
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE as QUEUE
from kubectl_ddp.kube.kueue_queue import owner_of
from kubectl_ddp.kube.objects import Object, Queued, Snapshot
from kubectl_ddp.kube.related_objects import RelatedKind
from kubectl_ddp.why.facts import Facts
from kubectl_ddp.why.gather import gather
from kubectl_ddp.why.kueue_workload import admission_of
from kubectl_ddp.why.model import Cause
from kubectl_ddp.why.printer import diagnosis_to_dict
from tests.support.diagnosed import facts, first
from tests.support.kube_objects import job, job_metrics, pod, pod_metrics, rank_metrics
from tests.support.scripted_backend import ScriptedBackend

RECORDED = json.loads((Path(__file__).parents[3] / "samples" / "kueue_queue.json").read_text(encoding="utf-8"))


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
    known = dataclasses.replace(known, snapshot=dataclasses.replace(known.snapshot, queued=told))
    waits_for = admission_of(known)
    return known if waits_for is None else dataclasses.replace(known, forecast=waits_for[0].forecast(waits_for[1]))


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
        "holds quota: holder in namespace team (2 pods, priority 0), end unknown",
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


def test_a_job_that_kueue_failed_to_start_waits_for_ever_and_is_queued_again_by_resume() -> None:
    conditions = [
        {"type": "Admitted", "status": "True"},
        {"type": "Finished", "status": "True", "reason": "FailedToStart", "message": "invalid admission check"},
    ]
    found = first(in_queue({**MINE, "status": {"conditions": conditions}}))
    assert (found.subject, "failed to start it" in found.message) == (Cause.QUEUED, True)
    assert "resume digits" in found.hint
    assert "invalid admission check" in found.evidence[0]


class Place(ScriptedBackend):
    """A recorded queue of Kueue 0.18.3: 'second' waits for quota that 'first' holds, which runs and has metrics."""

    def job(self, name: str, *, events: bool = True, namespace: str | None = None) -> Snapshot:
        """The job that waits, or the one that holds the quota."""
        if name == "first" and self.denied:
            raise Forbidden(f"You may not get jobs in namespace '{namespace}'.")
        uids = {each["metadata"]["ownerReferences"][0]["name"]: owner_of(each) for each in RECORDED["workloads"]}
        about = {"name": name, "uid": uids[name], "labels": {QUEUE: "team", "ddp.dev/job": name}}
        root = job("Running", metadata=about) if name == "first" else job(run_policy={"suspend": True}, metadata=about)
        queue = Queued("team", is_admitted=name == "first")
        return Snapshot(root, (pod(0),) if name == "first" else (), queued=queue)

    denied = False


def recorded(**without: tuple[Object, ...]) -> Place:
    kinds = {"workloads": RelatedKind.WORKLOADS, "localQueues": RelatedKind.LOCAL_QUEUES}
    kinds["clusterQueues"] = RelatedKind.CLUSTER_QUEUES
    around = {kind: tuple(RECORDED[name]) for name, kind in kinds.items() if name not in without}
    text = pod_metrics() + job_metrics(planned=100) + rank_metrics(0, step=10, seconds=20.0)
    return Place([], metrics=[{"digits-worker-0": text}], around=around)


def test_a_job_that_waits_names_the_quota_the_job_that_has_to_end_and_its_expected_end() -> None:
    known = gather(recorded(), "second")
    found = first(known)
    assert found.subject is Cause.QUEUED
    assert any("0.3 cpu, 0.6 used" in line and "limit 0.3" in line for line in found.evidence)
    assert "There is enough when team/first ends, in about 3m." in found.hint
    told = diagnosis_to_dict(known, [found])["queue"]
    assert [(each["name"], each["etaSeconds"]) for each in told["mustEnd"]] == [("first", 180.0)], "90 steps of 2 s"


def test_the_end_of_a_job_that_may_not_be_read_is_unknown_and_that_is_said() -> None:
    place = recorded()
    place.denied = True
    known = gather(place, "second")
    assert "There is enough when team/first ends; when is unknown." in first(known).hint
    assert diagnosis_to_dict(known, [])["notLookedAt"] == ["You may not get jobs in namespace 'team'."]


def test_without_the_quota_the_holders_are_still_named() -> None:
    known = gather(recorded(clusterQueues=()), "second")
    assert "holds quota: first in namespace team (2 pods, priority 0), about 3m to go" in first(known).evidence
    assert "It begins when enough of the jobs that hold the quota have ended." in first(known).hint
    told = diagnosis_to_dict(known, [])["queue"]
    assert (told["quotas"], told["mustEnd"], told["holders"][0]["etaSeconds"]) == ([], None, 180.0)
