"""The table of rights, compared with the recorded API requests of every command."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import pytest

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api_errors import call
from kubectl_ddp.backends.cluster.read.kueue_workloads import JOB_UID
from kubectl_ddp.backends.job_recovery import RUN
from kubectl_ddp.cli.internal import progress
from kubectl_ddp.cli.registry import COMMANDS
from kubectl_ddp.cli.run import run
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.rbac import rights
from kubectl_ddp.rbac.rights import EVERYWHERE, KINDS, NEEDS, OWN, Right, permissions_to_check
from kubectl_ddp.render import render
from tests.support import kube_objects
from tests.support.api_server import ALL_ALLOWED, GROUPS, Answer, ApiServer, Json, Request, kubeconfig, serving
from tests.support.jobs import a_job

STANDSTILL: Final = "the progress does not name every cause of a standstill"
"""Effect of the rights that only the progress of a waiting command needs."""
VERSIONS: Final = {
    **{root.group: root.api_version.partition("/")[2] for root in ENGINES.values()},
    **dict.fromkeys(("kueue.x-k8s.io", "visibility.kueue.x-k8s.io"), "v1beta2"),
    **dict.fromkeys(("scheduling.volcano.sh", "resource.nvidia.com"), "v1beta1"),
    "scheduling.x-k8s.io": "v1alpha1",
}
KIND_NAMES: Final = {plural: kind for kinds in GROUPS.values() for kind, plural in kinds.items()} | {
    "trainingruntimes": "TrainingRuntime",
    "podgroups": "PodGroup",
    **{r.plural: r.kind for r in ENGINES.values()},
}
ANYBODY_MAY: Final = re.compile(r"/version|/api(/v1)?|/apis(/[^/]+){0,2}|/apis/auth(entic|oriz)ation\.k8s\.io/.*")
"""Discovery, and questions about oneself."""

JOB: Final = "/apis/kubeflow.org/v1/namespaces/team/pytorchjobs/digits"
OTHER: Final = "other"
"""Another namespace, whose job holds quota."""
IMAGE: Final = ("--image", "example.com/train:1", "--command", "true")
LARGE: Final = (
    *("--name", "new", *IMAGE, "--nnodes", "2", "--nproc", "1", "--cpu", "1", "--memory", "1Gi"),
    *("--mount", "pvc=data:/data", "--secret-env", "TOKEN=hub:token", "--env-from", "configmap/settings"),
    *("--priority", "high", "--queue", "team", "--queue-priority", "urgent"),
)
DDPJOBS: Final = ("ddpjobs.ddp.dev",)
CODE_OF_DDPJOB: Final = "no script and no directory is sent with a DDPJob"
CUT_OFF: Final = "a submission that was cut off cannot be finished"
BY_KUBECTL: Final = frozenset({"exec", "profile", "port-forward"})

WAITS, RUNS, FAILED = "waits", "Running", "Failed"
STATES: Final[Mapping[str, tuple[str, ...]]] = {
    **dict.fromkeys(("list", "status", "why", "bundle"), (WAITS, RUNS, FAILED)),
    "logs": (FAILED,),
    **dict.fromkeys(("wait", "events", "prune"), (FAILED,)),
    "report": (RUNS, FAILED),
    **dict.fromkeys(("suspend", "resume"), (WAITS, RUNS)),
    "restart": (WAITS, FAILED),
}
"""Command → states of its job (default: running)."""

WAITING: Final = ("--wait", "--timeout", "1s")
ASKS_MUCH: Final = LARGE[LARGE.index("--mount") :]
TAKEN: Final = "taken"
"""A name whose Service belongs to another job."""
ALSO: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    *((WAITS, (command, "digits")) for command in ("logs", "events", "top", "dashboard", "hang", "profile")),
    (WAITS, ("exec", "digits", "--rank", "0", "--", "true")),
    (WAITS, ("port-forward", "digits", "9000")),
    (WAITS, ("report", "digits", "-o", "{folder}/digits.html")),
    (WAITS, ("wait", "--for=running", "--timeout", "1s")),
    (WAITS, ("scale", "digits", "--nnodes", "1", "--no-wait")),
    (WAITS, ("clone", "digits", "--name", "again", "--preflight=off")),
    (RUNS, ("logs", "digits", "--rank", "0")),
    (RUNS, ("wait", "digits", "--for=running", "--timeout", "30s")),
    *((RUNS, (command, "digits", *WAITING)) for command in ("suspend", "resume")),
    (WAITS, ("resume", "digits", *WAITING)),
    (RUNS, ("scale", "digits", "--nnodes", "1", *WAITING)),
    (RUNS, ("submit", *LARGE, "--preflight=off", *WAITING)),
    (RUNS, ("submit", "--name", TAKEN, *IMAGE, "--engine", "pytorchjob", "--preflight=off")),
    (RUNS, ("clone", "digits", "--name", "again", "--preflight=off", *WAITING)),
    (RUNS, ("clone", "digits", "--name", "again", "--engine", "trainjob", "--preflight=off")),
    (RUNS, ("clone", "digits", "--name", "again", *ASKS_MUCH, "--preflight=warn")),
    (RUNS, ("clone", "digits", "--name", TAKEN, "--preflight=off")),
    (FAILED, ("restart", "digits", "--yes", *WAITING)),
)
"""Further calls of a command, each with the state of the job."""

CALLS: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    **{command: ((command, "digits"),) for command in ("why", "profile", "suspend", "resume")},
    **{command: ((command,),) for command in ("capacity", "presets", "doctor")},
    "list": (("list",), ("list", "-A")),
    "status": (("status",), ("status", "digits", "--ranks")),
    "hang": (("hang", "digits", "--timeout", "0"),),
    "bundle": (("bundle", "digits", "--file", "{folder}/digits.tar.gz"),),
    "logs": (("logs", "digits"), ("logs", "digits", "--rank", "0"), ("logs", "digits", "--first-error")),
    "events": (("events", "digits"), ("events", "digits", "--follow")),
    "top": (("top", "digits", "-o", "json"),),
    "report": (("report", "digits", "-o", "{folder}/digits.html"),),
    "wait": (("wait", "digits", "--for=running", "--timeout", "10s"),),
    "exec": (("exec", "digits", "--rank", "0", "--", "true"),),
    "port-forward": (("port-forward", "digits", "9000"),),
    "dashboard": (("dashboard", "digits", "--print"),),
    "submit": (
        ("submit", *LARGE, "--preflight=warn"),
        *(("submit", "--name", "new", *IMAGE, "--engine", engine, "--preflight=off") for engine in ENGINES),
    ),
    "preflight": (("preflight", *LARGE),),
    "clone": (("clone", "digits", "--name", "again", "--preflight=warn"),),
    "render": (("render", "--name", "new", *IMAGE, "--preset", "a100"),),
    "scale": (("scale", "digits", "--nnodes", "1"),),
    "restart": (("restart", "digits", "--yes", "--timeout", "1s"),),
    "delete": (("delete", "digits", "--yes"), ("delete", "--all", "--yes"), ("delete", "nothing", "--yes")),
    "prune": (("prune", "--yes"), ("prune", "-A", "--yes")),
}


NOT_PLAYED: Final = {
    # A pod that comes while a command follows or waits, which this server has none of.
    ("logs", "watch", "pods"),
    *((command, "get", resource) for command in ("submit", "clone") for resource in ("pods/log", "pods/proxy")),
    ("restart", "get", "pods/proxy"),
    # kubectl sends these requests when a rank hangs.
    *(("hang", verb, "pods/exec") for verb in ("create", "get")),
    ("hang", "get", "pods"),
    # Of a TrainJob that has failed; that of submit and clone is.
    ("restart", "patch", "trainingruntimes.trainer.kubeflow.org"),
}
"""Command, verb and the last resource of a row of the table."""


class Recorder(ApiServer):
    """Serve all kinds of the table, and allow every request."""

    def answer(self, request: Request) -> Answer:
        if request.path == "/apis":
            return Answer(200, {"kind": "APIGroupDiscoveryList", "items": list(_discovery())})
        if request.path.startswith("/apis/authorization"):
            return ALL_ALLOWED
        return super().answer(request)


def _groups() -> dict[str, dict[str, str]]:
    found: dict[str, dict[str, str]] = {}
    for group, plural in KINDS:
        path = f"/apis/{group}/{VERSIONS.get(group, 'v1')}" if group else "/api/v1"
        found.setdefault(path, {})[KIND_NAMES.get(plural, plural)] = plural
    return found


def _discovery() -> Iterator[Json]:
    for path, kinds in _groups().items():
        if path != "/api/v1":
            group, version = path.split("/")[2:]
            resources = [{"resource": name, "responseKind": {"kind": kind}} for kind, name in kinds.items()]
            entry = {"version": version, "freshness": "Current", "resources": resources}
            yield {"metadata": {"name": group}, "versions": [entry]}


def _needed(name: str, folder: Path, patch: pytest.MonkeyPatch) -> frozenset[Right]:
    """Return the rights that the requests of a command need."""
    patch.setenv("PATH", "/nonexistent")  # what is handed over to kubectl is kubectl's
    patch.setenv("KUBECTL_DDP_PYTHON", "/bin/false")
    patch.setattr(progress, "STALL_SECONDS", 0.0)
    patch.setenv("HOME", str(folder))
    found: set[Right] = set()
    done = [(state, words) for words in CALLS[name] for state in STATES.get(name, (RUNS,))]
    for state, words in (*done, *(item for item in ALSO if item[1][0] == name)):
        with serving(Recorder(_groups())) as server:
            _furnish(server, state)
            patch.setenv("KUBECONFIG", str(kubeconfig(folder, server.url)))
            run([word.format(folder=folder) for word in words])
        found |= {right for request in server.requests if (right := _right(request)) is not None}
    return frozenset(found)


def _furnish(server: ApiServer, state: str) -> None:
    """A job of ours that waits in a queue, runs, or has failed; its pod cannot be placed, runs, or has failed."""
    job = next(item for item in render(a_job(), "run1") if item["kind"] == "PyTorchJob")
    job["metadata"]["creationTimestamp"] = kube_objects.CREATED
    job["status"] = {"conditions": [kube_objects.condition(state)] if state != WAITS else []}
    if state == WAITS:
        job["spec"]["runPolicy"]["suspend"] = True
        job["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] = "team"
    uid = server.put(JOB, job)["metadata"]["uid"]
    _furnish_queue(server, uid, is_admitted=state != WAITS)
    labels = {label: job["metadata"]["labels"][label] for label in (Label.JOB, Label.RUN_ID)} | {Label.ROLE: "worker"}
    error = {"message": {"message": "RuntimeError: no", "extraInfo": {"rank": 0}}}
    shown = {FAILED: kube_objects.terminated(1, error), WAITS: kube_objects.waiting()}
    pod = kube_objects.pod(0, shown.get(state), labels=labels)
    pod["status"]["conditions"] = [{"type": "PodScheduled", "status": "False" if state == WAITS else "True"}]
    server.put("/api/v1/namespaces/team/pods/digits-worker-0", pod)
    server.put("/api/v1/namespaces/team/configmaps/digits-restart", {"metadata": {"annotations": {RUN: "run0"}}})
    server.put(f"/api/v1/namespaces/team/services/{TAKEN}-store", {"metadata": {"labels": {}}})
    left = {"metadata": {"labels": {Label.JOB: "nothing"}}}
    server.put("/apis/trainer.kubeflow.org/v1alpha1/namespaces/team/trainingruntimes/nothing", left)


def _furnish_queue(server: ApiServer, uid: str, *, is_admitted: bool) -> None:
    """A queue whose quota a job of another namespace holds, and in which the job of this uid waits or runs."""
    kueue = "/apis/kueue.x-k8s.io/v1beta2"
    server.put(f"{kueue}/clusterqueues/lab", {"spec": {}})
    server.put(f"{kueue}/namespaces/team/localqueues/team", {"spec": {"clusterQueue": "lab"}})
    holds = {"admission": {"clusterQueue": "lab"}, "conditions": [{"type": "QuotaReserved", "status": "True"}]}
    for namespace, name, its in (("team", "digits", uid), (OTHER, "holder", "u-other")):
        owners = [{"kind": "PyTorchJob", "name": name, "uid": its}]
        made = {"labels": {JOB_UID: its}, "creationTimestamp": kube_objects.CREATED}
        metadata = {**made, "ownerReferences": owners}
        spec = {"queueName": "team", "podSets": [{"name": "main", "count": 1}]}
        status = holds if is_admitted or namespace == OTHER else {}
        workload = {"metadata": metadata, "spec": spec, "status": status}
        server.put(f"{kueue}/namespaces/{namespace}/workloads/{name}", workload)
    [job] = [item for item in render(a_job(name="holder"), "run2") if item["kind"] == "PyTorchJob"]
    job["metadata"] |= {"namespace": OTHER, "creationTimestamp": kube_objects.CREATED}
    server.put(JOB.replace("team", OTHER).replace("digits", "holder"), job)
    labels = {label: job["metadata"]["labels"][label] for label in (Label.JOB, Label.RUN_ID)} | {Label.ROLE: "worker"}
    server.put(
        f"/api/v1/namespaces/{OTHER}/pods/holder-worker-0", kube_objects.pod(0, labels=labels, name="holder-worker-0")
    )


def _right(request: Request) -> Right | None:
    """Return the right that a request needs; ``None`` if every user has it."""
    if ANYBODY_MAY.fullmatch(request.path):
        return None
    done = call(request.method, request.path, server="", context="", watches="watch" in request.query)
    if done.resource == "namespaces":
        return Right.of(done.verb, "namespaces")
    where = {"team": OWN, "": EVERYWHERE, OTHER: EVERYWHERE}.get(done.namespace, done.namespace)
    return Right.of(
        done.verb, done.resource, where, (done.name,) if where not in {OWN, EVERYWHERE} and done.name else ()
    )


@pytest.mark.parametrize("command", CALLS)
def test_a_command_uses_exactly_the_rights_of_the_table(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = _needed(command, tmp_path, monkeypatch)
    listed = {right for _, right in rights.needs(commands=(command,))}
    assert used
    assert sorted(map(str, used - listed)) == []
    unused = set()
    for need in NEEDS:
        if command not in need.commands or need.without in {CUT_OFF, STANDSTILL} or set(need.commands) <= BY_KUBECTL:
            continue  # what tests of submissions that die show, what `why` uses too, and what kubectl does itself
        if need.resources == DDPJOBS or need.without == CODE_OF_DDPJOB:
            continue  # what tests/cluster/test_cluster_ddpjob.py shows
        verbs = {right.verb for right in need.permissions() if right in used}
        unused |= {(command, verb, need.resources[-1]) for verb in need.verbs if verb not in verbs}
    assert unused == {item for item in NOT_PLAYED if item[0] == command}


def test_every_command_that_asks_a_cluster_is_in_the_table_and_in_a_section() -> None:
    commands = {command for need in NEEDS for command in need.commands}
    assert commands == set(CALLS) == {command for section in rights.SECTIONS.values() for command in section}
    assert commands == COMMANDS.keys() - {"config", "completion", "explain", "history", "init", "version"}


def test_submitting_takes_the_kinds_that_are_created_and_no_pod_of_ones_own() -> None:
    made = [("batch", "jobs"), ("", "services"), ("kubeflow.org", "pytorchjobs")]
    jobs = [f"{verb} pytorchjobs.kubeflow.org" for verb in ("create", "delete", "get", "patch")]
    store = ["create jobs.batch", "patch jobs.batch", "create services", "create secrets"]
    assert sorted(map(str, rights.to_submit("pytorchjob", made))) == sorted([*jobs, *store, "list pods"])
    assert "delete jobs.batch" in map(str, rights.to_submit("job", made[:2]))


def test_a_checkup_asks_about_what_commands_fail_without_and_never_about_reading_secrets() -> None:
    requests = permissions_to_check(KINDS)
    assert len(set(requests)) == len(requests)
    text = set(map(str, requests))
    assert {"create pods/exec", "list resourcequotas", "get serviceaccounts"} <= text
    assert "get endpointslices.discovery.k8s.io in namespace 'default'" in text
    assert not {"get secrets", "create pods"} & text
    assert {right.group for right in permissions_to_check({("", "pods"), ("batch", "jobs")})} == {"", "batch"}


def test_a_checkup_asks_about_the_objects_of_jobs_only_where_no_ddpjob_is_served() -> None:
    assert "create pytorchjobs.kubeflow.org" not in map(str, permissions_to_check(KINDS))
    without = KINDS - {("ddp.dev", "ddpjobs")}
    assert "create pytorchjobs.kubeflow.org" in map(str, permissions_to_check(without))
