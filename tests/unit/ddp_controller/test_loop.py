"""One pass of the loop over an API server: only the holder of the Lease acts, and it leaves no budget behind."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ddp_controller import world
from ddp_controller.executor import execute
from ddp_controller.lease import Lease
from ddp_controller.loop import DRAIN_SECONDS, MOST_REPORTS, Controller
from ddp_controller.metrics import ControllerMetrics
from ddp_controller.pod_move import OWN_ROLE
from ddp_controller.running_job import SetBudget
from ddp_controller.world import World
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.connection import connect
from kubectl_ddp.errors import AlreadyExists
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.concurrency import Stop
from tests.support.api_server import Answer, ApiServer, kubeconfig, status
from tests.support.clocks import Clock
from tests.unit.ddp_controller.controller_jobs import DRAINING, GROUPS, LEASE, NOW, TIMING, moving, pod, root, store

JOB = "/apis/batch/v1/namespaces/team/jobs/digits"
BUDGET = "/apis/policy/v1/namespaces/team/poddisruptionbudgets/ddp-digits"
ROLE = f"/apis/rbac.authorization.k8s.io/v1/clusterroles/{OWN_ROLE}"
SETTLED = NOW - time.time() + 3600
"""Seconds before the time of the tests' objects: an hour before the present."""
pytestmark = pytest.mark.api_groups(GROUPS)


@pytest.fixture(autouse=True)
def draining_job(server: ApiServer) -> None:
    """A job of which one pod is on a node that drains."""
    server.put(JOB, root())
    for index in range(2):
        server.put(f"/api/v1/namespaces/team/pods/digits-{index}", pod(index, DRAINING if index == 0 else "fine"))
    server.put(f"/api/v1/nodes/{DRAINING}", {"spec": {"unschedulable": True}, "status": {}})


def made(
    server: ApiServer, folder: Path, *, namespaces: tuple[str, ...] = (), review: Callable[[], None] = lambda: None
) -> Controller:
    api = Api(connect(kubeconfig=str(kubeconfig(folder, server.url))), sleep=lambda _: None)
    world = World(api, taints={}, namespaces=namespaces)
    lease = Lease(api, "team", "me")
    parts = {"api": api, "world": world, "lease": lease, "timing": TIMING, "metrics": ControllerMetrics()}
    return Controller(**parts, stop=Stop(), check_rights=review)


@pytest.fixture
def controller(server: ApiServer, tmp_path: Path) -> Iterator[Controller]:
    found = made(server, tmp_path)
    found.world.start()
    yield found
    found.world.stop()


def after_one_pass(server: ApiServer, folder: Path, **options: Any) -> Controller:
    """Return a controller after one pass of its loop, which no longer watches."""
    found = made(server, folder, **options)
    found.world.start()
    found.run_once()
    found.world.stop()
    return found


def wait_until(controller: Controller, reached: Callable[[], object]) -> None:
    while not reached():
        controller.world.changes.get(timeout=20)


def size(server: ApiServer) -> int:
    return int(server.objects[JOB]["spec"]["parallelism"])


def test_the_holder_of_the_lease_protects_a_job_and_starts_its_replacement(
    server: ApiServer, controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    controller.run_once()
    assert server.objects[BUDGET]["spec"]["minAvailable"] == 2
    assert size(server) == 3
    assert json.loads(server.objects[JOB]["metadata"]["annotations"]["ddp.dev/move"])["size"] == 2
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [(line["event"], line["job"]) for line in lines] == [("budget", "team/digits"), ("surge", "team/digits")]
    sent = [request for request in server.requests if str(request) == f"PATCH {JOB}"]
    assert {"uid", "resourceVersion"} <= sent[0].body["metadata"].keys(), "a stale decision must be refused"


def test_a_budget_ends_with_the_controllers_rights_or_with_its_job(server: ApiServer, controller: Controller) -> None:
    def owner() -> Object:
        [found] = server.objects[BUDGET]["metadata"]["ownerReferences"]
        return {key: found[key] for key in ("kind", "name", "uid")}

    controller.run_once()
    assert owner() == {"kind": "Job", "name": "digits", "uid": "uid-digits"}
    server.put(ROLE, {"metadata": {"uid": "of-the-role"}})
    [job] = controller.world.jobs()[0]
    execute(controller.api, SetBudget(job=job, min_available=1))
    assert owner() == {"kind": "ClusterRole", "name": OWN_ROLE, "uid": "of-the-role"}


def test_a_budget_of_an_earlier_run_is_taken_over(server: ApiServer, controller: Controller) -> None:
    earlier = {"ddp.dev/job": "digits", "ddp.dev/run-id": "r0"}
    metadata = {"uid": "b", "labels": {"app.kubernetes.io/managed-by": "ddp-controller"}}
    server.put(BUDGET, {"metadata": metadata, "spec": {"minAvailable": 2, "selector": {"matchLabels": earlier}}})
    controller.run_once()
    assert server.objects[BUDGET]["spec"]["selector"]["matchLabels"]["ddp.dev/run-id"] == "r1"


@pytest.mark.parametrize("wanted", [1, None])
def test_a_budget_of_others_is_not_changed(server: ApiServer, controller: Controller, wanted: int | None) -> None:
    """Its creation may not have been seen when the decision was made."""
    [job] = controller.world.jobs()[0]
    foreign = {"minAvailable": 2, "selector": {"matchLabels": {"app": "theirs"}}}
    server.put(BUDGET, {"metadata": {"uid": "b"}, "spec": foreign})
    with contextlib.suppress(AlreadyExists):
        execute(controller.api, SetBudget(job=job, min_available=wanted))
    assert server.objects[BUDGET]["spec"] == foreign


def test_without_the_lease_nothing_changes(server: ApiServer, controller: Controller) -> None:
    held = {"holderIdentity": "other", "renewTime": "2026-01-01T00:00:00.000000Z", "leaseDurationSeconds": 15}
    server.put(LEASE, {"spec": held})
    controller.run_once()
    assert BUDGET not in server.objects
    assert size(server) == 2


def test_a_decision_on_an_old_copy_is_not_an_error(
    server: ApiServer, controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    server.next(f"PATCH {JOB}", Answer(409, status(409, "Conflict", "the object has been modified", name="digits")))
    controller.run_once()
    server.wait_until_answered(f"PATCH {JOB}")
    assert size(server) == 2
    assert "refused" not in capsys.readouterr().err


@pytest.mark.parametrize(("code", "reviews"), [(403, 1), (500, 0)])
def test_after_a_denied_request_rights_are_reviewed(server: ApiServer, tmp_path: Path, code: int, reviews: int) -> None:
    """A policy may deny it as well: then no right is missing, and it continues."""
    reviewed: list[int] = []
    server.next(f"PATCH {JOB}", *[Answer(code, status(code, "Forbidden", "no", name="digits"))] * 9)
    after_one_pass(server, tmp_path, review=lambda: reviewed.append(1))
    assert len(reviewed) == reviews


@pytest.fixture
def replaced(server: ApiServer) -> ApiServer:
    """A job whose replacement for the pod on the doomed node has settled."""
    server.put(JOB, root(3, annotations=moving(2)))
    for index in range(3):
        settled = pod(index, DRAINING if index == 0 else "fine", ready=SETTLED)
        server.put(f"/api/v1/namespaces/team/pods/digits-{index}", settled)
    server.put("/api/v1/namespaces/team/pods/digits-store-0", store(runs=SETTLED))
    return server


@pytest.mark.parametrize(
    ("spec", "seconds"),
    [({"unschedulable": True}, DRAIN_SECONDS), ({"taints": [{"key": "karpenter.sh/disrupted"}]}, 0.0)],
)
def test_a_drain_has_time_to_evict(replaced: ApiServer, controller: Controller, spec: Object, seconds: float) -> None:
    replaced.put(f"/api/v1/nodes/{DRAINING}", {"spec": spec, "status": {}})
    wait_until(controller, lambda: controller.world.jobs()[0][0].pods[0].drain_reason)
    controller.clock = clock = Clock()
    for now, evictions in ((100.0, int(not seconds)), (100.0 + seconds, 1)):
        clock.now = now
        controller.run_once()
        assert sum(path.endswith("/digits-0/eviction") for path in replaced.asked("POST")) == evictions
        assert replaced.objects[BUDGET]["spec"]["minAvailable"] == 2


def test_the_time_of_a_drain_starts_again_when_the_pod_has_to_stay(replaced: ApiServer, controller: Controller) -> None:
    place = "/api/v1/namespaces/team/pods/digits-store-0"
    controller.clock = clock = Clock()
    controller.run_once()
    stored = replaced.objects[place]
    replaced.drop(place)
    wait_until(controller, lambda: not controller.world.jobs()[0][0].store)
    clock.now += 1
    controller.run_once()
    replaced.put(place, stored)
    wait_until(controller, lambda: controller.world.jobs()[0][0].store)
    clock.now += DRAIN_SECONDS
    controller.run_once()
    assert not [path for path in replaced.asked("POST") if path.endswith("/eviction")]
    clock.now += DRAIN_SECONDS
    controller.run_once()
    assert [path for path in replaced.asked("POST") if path.endswith("/eviction")]


def test_a_refused_eviction_does_not_delay_the_budget(replaced: ApiServer, tmp_path: Path) -> None:
    """A drain may have evicted a pod first: the budget must grow before the replacement is ready."""
    server = replaced
    server.put(f"/api/v1/nodes/{DRAINING}", {"spec": {"taints": [{"key": "karpenter.sh/disrupted"}]}, "status": {}})
    refusal = status(429, "TooManyRequests", "Cannot evict pod as it would violate the pod's disruption budget.")
    server.next("POST /api/v1/namespaces/team/pods/digits-0/eviction", Answer(429, refusal))
    controller = made(server, tmp_path)
    controller.world.start()
    controller.run_once()
    assert server.objects[BUDGET]["spec"]["minAvailable"] == 2
    server.put("/api/v1/namespaces/team/pods/digits-0", pod(0, DRAINING, leaving=True))
    wait_until(controller, lambda: any(item.is_leaving for item in controller.world.jobs()[0][0].pods))
    controller.run_once()
    assert server.objects[BUDGET]["spec"]["minAvailable"] == 3
    controller.world.stop()


def test_a_missing_pod_is_missing_since_it_was_first_seen_to_be(server: ApiServer, controller: Controller) -> None:
    def missing_since() -> float | None:
        return controller.world.jobs()[0][0].missing_since

    def change(pods: int) -> None:
        server.put(JOB, root(pods))
        wait_until(controller, lambda: controller.world.jobs()[0][0].size == pods)

    assert missing_since() is None
    began = time.time()
    change(3)
    assert began <= (since := missing_since() or 0)
    assert missing_since() == since
    change(4)
    assert (missing_since() or 0) > since, "another one is missing"
    change(2)
    assert missing_since() is None


def test_a_malformed_job_is_skipped_and_reported_once(
    server: ApiServer, controller: Controller, capsys: pytest.CaptureFixture[str]
) -> None:
    bad: Object = root(name="bad", nnodes="many")
    server.put("/apis/batch/v1/namespaces/team/jobs/bad", bad)
    controller.world.stop()
    again = World(controller.api, taints={})
    again.start()
    controller.world = again
    controller.run_once()
    controller.run_once()
    controller._skipped.clear()  # as in its successor
    controller.run_once()
    errors = [line for line in capsys.readouterr().err.splitlines() if "skipped" in line]
    assert len(errors) == 2
    assert "team/bad" in errors[0]
    [event] = [item for path, item in server.objects.items() if "/events/" in path]
    named = {"apiVersion": "batch/v1", "kind": "Job", "namespace": "team", "name": "bad", "uid": "uid-bad"}
    assert event["involvedObject"] == named
    assert "many" in event["message"]
    assert size(server) == 3, "the other job is managed"


def test_many_malformed_jobs_are_reported_over_several_passes_and_forgotten_with_their_jobs(
    server: ApiServer, controller: Controller
) -> None:
    paths = [f"/apis/batch/v1/namespaces/team/jobs/bad-{number}" for number in range(MOST_REPORTS + 1)]
    for number, path in enumerate(paths):
        server.put(path, root(name=f"bad-{number}", nnodes="9" * 100_000))
    wait_until(controller, lambda: len(controller.world.jobs()[1]) > MOST_REPORTS)
    for reported in (MOST_REPORTS, MOST_REPORTS + 1):
        controller.run_once()
        events = [item for path, item in server.objects.items() if "/events/" in path]
        assert len(events) == reported
    assert max(len(event["message"]) for event in events) < 1024, "the API server refuses a longer one"
    for path in (JOB, *paths):
        server.drop(path)
    wait_until(controller, lambda: not controller.world.jobs()[1])
    controller.clock = lambda: time.monotonic() + 60
    controller.run_once()
    assert (controller._skipped, controller._paused) == ({}, {})


def test_a_kind_that_is_installed_later_is_found_without_a_restart(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world, "DISCOVERY_SECONDS", 0.01)
    found = made(server, tmp_path).world
    found.start()
    server.groups = GROUPS | {"/apis/jobset.x-k8s.io/v1alpha2": {"JobSet": "jobsets"}}
    server.put("/apis/jobset.x-k8s.io/v1alpha2/namespaces/team/jobsets/late", root(name="late", engine="jobset"))
    try:
        while {job.key for job in found.jobs()[0]} != {"team/digits", "team/late"}:
            found.changes.get(timeout=20)
    finally:
        found.stop()


def test_a_job_that_has_only_the_label_is_left_alone(server: ApiServer, tmp_path: Path) -> None:
    foreign, own = root(name="theirs", engine="pytorchjob"), root(name="ours", engine="pytorchjob")
    del foreign["metadata"]["annotations"]["ddp.dev/spec"]
    for job in (foreign, own):
        server.put(f"/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/{job['metadata']['name']}", job)
    controller = made(server, tmp_path)
    controller.world.start()
    assert {job.key for job in controller.world.jobs()[0]} == {"team/digits", "team/ours"}
    controller.world.stop()


def test_jobs_of_other_namespaces_are_left_alone(server: ApiServer, tmp_path: Path) -> None:
    after_one_pass(server, tmp_path, namespaces=("another",))
    assert BUDGET not in server.objects
    assert size(server) == 2
    complete = {f"{root}/{plural}" for root, kinds in GROUPS.items() for plural in kinds.values()}
    assert {item.path for item in server.requests} & complete == {"/api/v1/nodes"}, "lists of all namespaces"


def test_jobs_of_several_namespaces_are_managed(server: ApiServer, tmp_path: Path) -> None:
    both = after_one_pass(server, tmp_path, namespaces=("another", "team", "team"))
    assert [job.key for job in both.world.jobs()[0]] == ["team/digits"]
    assert size(server) == 3


def test_at_its_end_it_deletes_its_budgets_and_releases_the_lease(server: ApiServer, tmp_path: Path) -> None:
    after_one_pass(server, tmp_path)
    assert BUDGET in server.objects
    last = made(server, tmp_path)
    last.world.start()
    last.stop.request()
    last.lease.try_acquire_or_renew()
    last.run()
    assert BUDGET not in server.objects
    assert server.objects[LEASE]["spec"]["holderIdentity"] == ""
