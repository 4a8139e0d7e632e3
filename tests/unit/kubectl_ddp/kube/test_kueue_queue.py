"""The position of a job in a queue of Kueue, and the number of requests that it costs."""

from __future__ import annotations

from typing import Any

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.read.kueue_workloads import JOB_UID
from kubectl_ddp.backends.cluster.write.scaling import set_active
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE, positions_from_api, queued
from kubectl_ddp.kube.objects import Object, Queued
from kubectl_ddp.status.describe import queue_place
from kubectl_ddp.status.job_state import State, job_state
from kubectl_ddp.status.job_tables import job_table
from kubectl_ddp.util.text_table import Style
from tests.support import kube_objects
from tests.support.api_server import GROUPS, JOBS, Answer, ApiServer, status

VISIBLE = "/apis/visibility.kueue.x-k8s.io/v1beta2/namespaces/team/localqueues/lab/pendingworkloads"
WORKLOADS = "/apis/kueue.x-k8s.io/v1beta2/namespaces/team/workloads"
pytestmark = pytest.mark.api_groups({**GROUPS, "/apis/kueue.x-k8s.io/v1beta2": {"Workload": "workloads"}})


def a_job(name: str = "digits", *, queue: str = "lab", waits: bool = True, over: str = "") -> Object:
    labels = {Label.JOB: name, Label.RUN_ID: "run1"} | ({KUEUE_QUEUE: queue} if queue else {})
    made = kube_objects.job("Suspended" if waits else over or "Running", run_policy={"suspend": waits})
    return made | {"metadata": {"name": name, "labels": labels, "creationTimestamp": kube_objects.CREATED}}


def a_workload(
    uid: str, *, priority: int = 0, second: int = 0, holds: str = "", queue: str = "lab", **spec: Any
) -> Object:
    return {
        "metadata": {"creationTimestamp": f"2026-01-01T00:00:0{second}Z", "ownerReferences": [{"uid": uid}]},
        "spec": {"queueName": queue, "priority": priority, **spec},
        "status": {"conditions": [{"type": holds, "status": "True"}] if holds else []},
    }


def test_a_job_without_a_queue_is_in_none() -> None:
    assert queued(a_job(queue="")) is None


@pytest.mark.parametrize(
    ("job", "expected"),
    [
        (a_job(), Queued("lab", is_admitted=False, position=2)),
        (a_job(waits=False), Queued("lab", is_admitted=True)),
        (a_job(waits=False, over="Succeeded"), Queued("lab", is_admitted=True)),
    ],
)
def test_a_job_waits_for_as_long_as_kueue_holds_it_back(job: Object, expected: Queued) -> None:
    job["metadata"]["uid"] = "u1"
    assert queued(job, {"u1": 2, "u2": 1}) == expected


def test_a_job_that_waits_in_a_queue_is_queued_and_not_suspended() -> None:
    job = a_job()
    found = kube_objects.snapshot(job)
    assert job_state(found, {}).state is State.SUSPENDED, "its queue is unknown"
    state = job_state(type(found)(job, (), queued=queued(job)), {})
    assert (state.state, state.reason, state.is_terminal) == (State.QUEUED, "It waits for quota.", False)


def test_places_are_those_of_the_quota_and_count_from_one() -> None:
    items = [
        {"metadata": {"ownerReferences": [{"uid": "u1"}]}, "positionInClusterQueue": 4, "positionInLocalQueue": 0},
        {"metadata": {}, "positionInClusterQueue": 5},
    ]
    assert positions_from_api({"items": items}) == {"u1": 5}


def test_a_list_has_a_column_for_queues_only_where_one_is_used() -> None:
    job = a_job()
    job["metadata"]["uid"] = "u1"
    plain = job_state(kube_objects.snapshot(a_job(queue="")), {})
    waits = job_state(type(kube_objects.snapshot(job))(job, (), queued=queued(job, {"u1": 3})), {})
    assert "QUEUE" not in job_table([plain], 0).render(Style())
    head, first, second = job_table([plain, waits], 0).render(Style()).splitlines()
    assert head.split()[:4] == ["NAME", "STATUS", "QUEUE", "READY"]
    assert (first.split()[2], second.split()[2:4]) == ("-", ["lab", "#3"])


@pytest.mark.parametrize(
    ("queue", "words"),
    [
        (Queued("lab", is_admitted=True), "lab, admitted"),
        (Queued("lab", is_admitted=False), "lab, waits to be admitted"),
        (Queued("lab", is_admitted=False, is_held=True), "lab, held back until it is resumed"),
        (Queued("lab", is_admitted=False, position=1), "lab, waits to be admitted as number 1, the next"),
        (Queued("lab", is_admitted=False, position=3), "lab, waits to be admitted as number 3, with 2 before it"),
    ],
)
def test_status_says_how_many_are_before_it(queue: Queued, words: str) -> None:
    assert queue_place(queue) == words


@pytest.mark.parametrize("jobs", [[a_job(queue="")], [a_job(waits=False)]])
def test_nothing_more_is_asked_where_no_job_waits_in_a_queue(
    server: ApiServer, backend: ClusterBackend, jobs: list[Object]
) -> None:
    server.groups = GROUPS
    for job in jobs:
        server.put(f"{JOBS}/{job['metadata']['name']}", job)
    [found] = backend.jobs()
    assert backend.job("digits", events=False).queued == found.queued
    assert not [path for path in server.asked("GET") if "kueue" in path]


def put_workload(server: ApiServer, uid: str, **spec: Any) -> None:
    made = a_workload(uid, **spec)
    server.put(f"{WORKLOADS}/of-{uid}", made | {"metadata": made["metadata"] | {"labels": {JOB_UID: uid}}})


@pytest.mark.parametrize("may_ask", [True, False])
def test_one_request_per_queue_tells_the_places_of_all_its_jobs(
    server: ApiServer, backend: ClusterBackend, *, may_ask: bool
) -> None:
    uids = [server.put(f"{JOBS}/{name}", a_job(name))["metadata"]["uid"] for name in ("one", "two")]
    items = [
        {"metadata": {"ownerReferences": [{"uid": uid}]}, "positionInClusterQueue": at}
        for at, uid in enumerate(reversed(uids))
    ]
    answer = Answer(200, {"items": items}) if may_ask else Answer(403, status(403, "Forbidden", "no"))
    server.next(f"GET {VISIBLE}", answer)
    found = {one.job["metadata"]["name"]: one.queued for one in backend.jobs()}
    places = {"two": 1, "one": 2} if may_ask else {"two": None, "one": None}
    assert found == {name: Queued("lab", is_admitted=False, position=at) for name, at in places.items()}
    assert [path for path in server.asked("GET") if "pendingworkloads" in path] == [VISIBLE]


def test_a_job_in_a_queue_is_held_and_let_go_by_its_workload_alone(server: ApiServer, backend: ClusterBackend) -> None:
    uid = server.put(f"{JOBS}/digits", a_job(waits=False))["metadata"]["uid"]
    put_workload(server, uid)
    put_workload(server, "another")
    backend.suspend("digits", suspended=True)
    assert [server.objects[f"{WORKLOADS}/of-{of}"]["spec"].get("active") for of in (uid, "another")] == [False, None]
    assert server.objects[f"{JOBS}/digits"]["spec"]["runPolicy"]["suspend"] is False, "Kueue does that"
    backend.suspend("digits", suspended=False)
    assert server.objects[f"{WORKLOADS}/of-{uid}"]["spec"]["active"] is True


def test_a_job_that_kueue_holds_is_suspended_and_one_without_quota_queued(
    server: ApiServer, backend: ClusterBackend
) -> None:
    uids = {name: server.put(f"{JOBS}/{name}", a_job(name))["metadata"]["uid"] for name in ("held", "unseen", "waits")}
    put_workload(server, uids["held"], active=False)
    put_workload(server, uids["unseen"])
    item = {"metadata": {"ownerReferences": [{"uid": uids["waits"]}]}, "positionInClusterQueue": 0}
    server.next(f"GET {VISIBLE}", Answer(200, {"items": [item]}), Answer(200, {"items": [item]}))
    states = {job.job["metadata"]["name"]: job_state(job, {}) for job in backend.jobs()}
    wanted = {"held": State.SUSPENDED, "unseen": State.QUEUED, "waits": State.QUEUED}
    assert {name: state.state for name, state in states.items()} == wanted
    requests = [path for path in server.asked("GET") if WORKLOADS in path]
    assert len(requests) == 1, "one request for all that wait and have no place"
    watched = backend.watch("held")
    assert job_state(next(watched), {}).state is State.SUSPENDED
    watched.close()  # type: ignore[attr-defined]  # it is a generator


def test_a_job_that_kueue_does_not_manage_is_suspended_itself(server: ApiServer, backend: ClusterBackend) -> None:
    server.put(f"{JOBS}/digits", a_job(waits=False))
    backend.suspend("digits", suspended=True)
    assert server.objects[f"{JOBS}/digits"]["spec"]["runPolicy"]["suspend"] is True, "it runs without a Workload"


def test_a_job_of_which_kueue_has_not_heard_is_waited_for_and_then_told_of(server: ApiServer, api: Api) -> None:
    job = server.put(f"{JOBS}/digits", a_job())
    with pytest.raises(DdpError, match="Kueue has not created a Workload for job 'digits' yet"):
        set_active(api, job, active=False, sleep=lambda _: None)
    assert set_active(api, job, active=False, sleep=lambda _: put_workload(server, job["metadata"]["uid"])), (
        "it comes while we wait"
    )
    assert server.objects[f"{WORKLOADS}/of-{job['metadata']['uid']}"]["spec"]["active"] is False


def test_without_kueue_a_queue_means_nothing(server: ApiServer, backend: ClusterBackend) -> None:
    server.groups = GROUPS
    server.put(f"{JOBS}/digits", a_job())
    backend.suspend("digits", suspended=False)
    assert server.objects[f"{JOBS}/digits"]["spec"]["runPolicy"]["suspend"] is False
