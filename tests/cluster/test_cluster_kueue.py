"""Kueue's controller admits one of our jobs, queues the others, and preempts one."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.access import Access
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import NotServed, PolicyDenied
from kubectl_ddp.backends.cluster.http.connection import connection_to
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import Forbidden
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.rbac.rights import rules
from kubectl_ddp.values.network_peers import NAMESPACE_NAME
from tests.cluster.live_cluster import Json, Namespace, Result, until
from tests.support.policy_cases import PATCHES, a_workload, policies
from tools.docs.platform_roles import ROLES

KUEUE = "kueue.x-k8s.io/v1beta2"
RBAC = "rbac.authorization.k8s.io/v1"
ADMISSION = "admissionregistration.k8s.io/v1"
TINY = ("--nproc", "1", "--cpu", "60m", "--memory", "128Mi", "--shm", "16Mi", "--command", "sleep 3600")


@pytest.fixture
def submitter(space: Namespace) -> Iterator[str]:
    """A user with the submit roles, to whom the platform's policy for Workloads applies."""
    user, tenant = f"{space.name}:ada", space.name
    granted = [right for role in ROLES if role.name.startswith("ddp-submit") for right in role.permissions()]
    space.api.create(space.path(RBAC, "roles"), {"metadata": {"name": "submit"}, "rules": rules(granted)})
    bound = {
        "metadata": {"name": "submit"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "submit"},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
    }
    space.api.create(space.path(RBAC, "rolebindings"), bound)
    with contextlib.ExitStack() as undo:
        policy, binding = policies(otherwise="Off", workloadPatch="Deny")
        selector = {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: tenant}}}
        binding["spec"] |= {"policyName": f"ddp-workload-patch-{tenant}", "matchResources": selector}
        for item, plural in ((policy, "validatingadmissionpolicies"), (binding, "validatingadmissionpolicybindings")):
            item["metadata"]["name"] = name = f"ddp-workload-patch-{tenant}"
            path = collection(ADMISSION, plural, None)
            uid = space.api.create(path, item)["metadata"]["uid"]
            undo.callback(space.api.delete, f"{path}/{name}", uid=uid)
        tries = itertools.count(100)  # a patch without a change is admitted
        with bare_workload(space):
            until("that the policy holds", lambda: refusal(space, user, {"spec": {"priority": next(tries)}}))
        yield user


@contextlib.contextmanager
def bare_workload(space: Namespace) -> Iterator[str]:
    """Create a Workload that belongs to no job, and yield its path."""
    every = space.path(KUEUE, "workloads")
    try:
        uid = space.api.create(every, a_workload("bare"))["metadata"]["uid"]
    except NotServed:
        pytest.skip("This cluster has no Kueue.")
    try:
        yield f"{every}/bare"
    finally:
        space.api.delete(f"{every}/bare", uid=uid)


def refusal(space: Namespace, user: str, change: Json) -> str:
    """Return the policy's message to a user who changes the Workload ``bare``; empty if it admits the change."""
    api = Api(connection_to(Access(acting_as=user)))
    path = space.path(KUEUE, "workloads", "bare")
    if "uid" in change.get("metadata", {}):
        change = {**change, "metadata": {"uid": space.api.get(path)["metadata"]["uid"]}}
    try:
        api.merge(path, change)
    except PolicyDenied as refused:
        return refused.policy_message
    except Forbidden:  # the role is not effective yet
        return ""
    return ""


def test_a_submitter_changes_spec_active_of_a_workload_and_nothing_else(space: Namespace, submitter: str) -> None:
    for patch in PATCHES:
        with bare_workload(space):
            message = refusal(space, submitter, patch.change)
        assert message.partition(": ")[0] == ", ".join(patch.fields), patch.name


def test_a_submitter_suspends_and_resumes_what_kueue_has_admitted_and_an_administrator_changes_its_priority(
    space: Namespace, submitter: str, queue: str
) -> None:
    submit(space, queue, "mine", "job", "--as", submitter)
    until("that it is admitted", lambda: jobs(space)["mine"]["queue"]["is_admitted"])
    space.ddp("suspend", "mine", "--as", submitter).ok()
    until("that it is suspended", lambda: jobs(space)["mine"]["state"] == "Suspended")
    space.ddp("resume", "mine", "--as", submitter).ok()
    until("that it is admitted again", lambda: jobs(space)["mine"]["queue"]["is_admitted"])

    with bare_workload(space) as path:
        space.api.merge(path, {"spec": {"priority": 5}})
        assert space.api.get(path)["spec"]["priority"] == 5


@pytest.fixture
def queue(space: Namespace, queue: str) -> Iterator[str]:
    """A LocalQueue with quota for one small node, in which jobs preempt jobs of lower priority."""
    priorities = collection("scheduling.k8s.io/v1", "priorityclasses", None)
    preemption = {"preemption": {"withinClusterQueue": "LowerPriority"}}
    space.api.merge(f"{collection(KUEUE, 'clusterqueues', None)}/{queue}", {"spec": preemption})
    priority = {"metadata": {"name": queue}, "value": 1000, "preemptionPolicy": "Never"}
    uid = space.api.create(priorities, priority)["metadata"]["uid"]
    yield queue
    space.ddp("delete", "--all", "--yes")
    space.api.delete(f"{priorities}/{queue}", uid=uid)


def submit(space: Namespace, queue: str, name: str, engine: str, *words: str) -> Result:
    size = () if "--nnodes" in words else ("--nnodes", "1")
    job = ("--name", name, "--engine", engine, "--image", space.image, "--queue", queue, *size)
    return space.ddp("submit", *job, *words, *TINY, environ={"KUBECTL_DDP_PREFLIGHT": ""}).ok()


def jobs(space: Namespace) -> dict[str, Json]:
    return {job["name"]: job for job in space.ddp("list", "-o", "json").ok().json["items"]}


def held_back(space: Namespace, name: str) -> None:
    """Suspend a queued job: others move up, and Kueue queues it again when it is resumed."""
    space.ddp("suspend", name).ok()
    until("that it is suspended", lambda: jobs(space)[name]["state"] == "Suspended")
    until("that it has left the line", lambda: jobs(space)[name]["queue"]["position"] is None)
    assert "held back until it is resumed" in space.ddp("status", name).out
    why = space.ddp("why", name)
    assert (why.code, "Kueue holds it back" in why.out, f"resume {name}" in why.out) == (12, True, True)
    assert space.ddp("wait", name, "--for=complete").code == 12
    space.ddp("resume", name).ok()
    until("that it is in line again", lambda: jobs(space)[name]["queue"]["position"])
    assert jobs(space)[name]["state"] == "Queued"


def test_a_job_that_kueue_has_admitted_is_suspended_stays_so_and_is_resumed_on_every_engine(
    space: Namespace, queue: str
) -> None:
    def is_let_go(engine: str) -> bool:
        kind = ENGINES[engine]
        return not job_kinds.at(space.api.get(f"{space.path(kind.api_version, kind.plural)}/{engine}"), kind.suspend)

    def runs(engine: str) -> bool:
        """Return True if the container runs: stopping it during its start fails the job (docs/exit-codes.md)."""
        pods = [pod for pod in space.pods() if pod["metadata"]["labels"][Label.JOB] == engine]
        left = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return any(
            "running" in status["state"] for pod in left for status in pod["status"].get("containerStatuses", [])
        )

    for engine in ENGINES:  # there is quota for one, so each is admitted because the one before has given it back
        submit(space, queue, engine, engine)
        until(f"that the {engine} is admitted and runs", functools.partial(runs, engine))
        assert f"resume {engine} -n {space.name}" in space.ddp("suspend", engine).ok().err
    until("that none runs", lambda: {job["state"] for job in jobs(space).values()} == {"Suspended"})
    workloads, _ = space.api.items(space.path(KUEUE, "workloads"))
    assert [workload["spec"]["active"] for workload in workloads] == [False] * len(ENGINES)
    for engine in ENGINES:
        assert f"when Kueue admits it to the queue '{queue}'" in space.ddp("resume", engine).ok().err
        until(f"that the {engine} is admitted again and runs", functools.partial(runs, engine))
        assert not any(is_let_go(other) for other in ENGINES if other != engine)
        space.ddp("suspend", engine).ok()


def test_kueue_admits_a_job_and_lets_those_of_every_engine_wait_until_one_goes_before_them(
    space: Namespace, queue: str
) -> None:
    submit(space, queue, "first", "job")
    until("that the first is admitted", lambda: jobs(space)["first"]["queue"]["is_admitted"])
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda engine: submit(space, queue, f"of-{engine}", engine), ENGINES))
    names = {f"of-{engine}" for engine in ENGINES}

    def places() -> dict[int, Json]:
        return {place: job for job in jobs(space).values() if (place := job["queue"]["position"])}

    waiting = until("that all others are in line", lambda: found if len(found := places()) == len(names) else None)
    assert sorted(waiting) == [1, 2, 3, 4], "each counts once, though a TrainJob becomes a JobSet"
    assert {job["name"] for job in waiting.values()} == names
    assert {(job["state"], job["queue"]["is_admitted"]) for job in waiting.values()} == {("Queued", False)}
    [line] = [line for line in space.ddp("list").out.splitlines() if line.split()[0] == waiting[2]["name"]]
    assert f"{queue} #2" in line
    assert waiting[2]["nodes"]["shortage"] == "waits for quota"
    status = space.ddp("status", waiting[2]["name"]).out
    assert f"{queue}, waits to be admitted as number 2, with 1 before it" in status
    assert f"{queue}, admitted" in space.ddp("status", "first").out
    why = space.ddp("why", waiting[1]["name"]).out
    assert "insufficient unused quota for cpu" in why
    assert f"holds quota: first in namespace {space.name} (1 pod, priority 0)" in why

    result = space.ddp("preflight", "--image", space.image, "--queue", queue, "--engine", "job", *TINY).ok().out
    assert f"4 jobs wait in the same queue; the next is {space.name}/{waiting[1]['name']}." in result
    [shown] = space.ddp("capacity", "--queue", queue, "-o", "json").ok().json["queues"]
    assert shown["waiting"] == 4
    assert {share["resource"]: (share["used"], share["quota"]) for share in shown["shares"]}["cpu"] == (0.06, 0.06)

    held_back(space, waiting[1]["name"])

    submit(space, queue, "urgent", "job", "--priority", space.name)
    until("that the urgent job is admitted", lambda: jobs(space)["urgent"]["queue"]["is_admitted"])
    until("that the first is in line again", lambda: jobs(space)["first"]["queue"]["position"])
    assert jobs(space)["first"]["state"] == "Queued"

    submit(space, queue, "foremost", "job", "--queue-priority", space.name)
    until("that the foremost job is admitted", lambda: jobs(space)["foremost"]["queue"]["is_admitted"])
    until("that the urgent job is in line again", lambda: jobs(space)["urgent"]["queue"]["position"])


def test_a_job_that_kueue_resizes_grows_when_there_is_quota_and_shrinks_at_once(space: Namespace, queue: str) -> None:
    submit(space, queue, "wide", "job", "--nnodes", "1:2", "--queue-resize", "running")
    until("that it is admitted with its minimum", lambda: jobs(space)["wide"]["queue"]["is_admitted"])
    grown = space.ddp("scale", "wide", "--nnodes", "2", "--no-wait")
    if "ElasticJobsViaWorkloadSlices is off" in grown.err:
        pytest.skip("Kueue's feature gate ElasticJobsViaWorkloadSlices is off.")
    grown.ok()
    until("that the new pod waits", lambda: jobs(space)["wide"]["nodes"]["shortage"] == "1 waits for quota")
    assert jobs(space)["wide"]["nodes"]["granted"] == 1
    until("that why reports the pending growth", lambda: "to grow to 2 nodes" in space.ddp("why", "wide").out)
    space.ddp("scale", "wide", "--nnodes", "1", "--no-wait").ok()
    until("that none waits", lambda: jobs(space)["wide"]["nodes"]["shortage"] == "")
