"""The kind DDPJob on a real API server: accepted and refused objects, and jobs managed by the controller."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.errors import DdpError, NotFound
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import condition_of
from tests.cluster.live_cluster import Json, Namespace, until
from tests.cluster.test_cluster_controller import controller
from tests.support.examples import JOB_FILES
from tests.support.programs import captured
from tests.support.refused_jobs import AS_TEXT, BY_SERVER, IN_VALID, ddpjob
from tools.docs.ddpjob_crd import crd_object

pytestmark = pytest.mark.alone  # every submission in the cluster creates a DDPJob if the kind is served
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
ONE_POD = ("--nnodes", "1", "--nproc", "1", "--cpu", "50m", "--memory", "256Mi", "--engine", "job")
TINY = {"nnodes": "1:2", "nproc": 1, "cpu": "50m", "memory": "128Mi", "shm": "16Mi", "grace": "5s", "engine": "job"}


@pytest.fixture(scope="module")
def kind(api: Api) -> Iterator[None]:
    """Install the CRD, and delete it again unless it existed before."""
    wanted = crd_object()
    path = f"{DEFINITIONS}/{wanted['metadata']['name']}"
    try:
        was_there = bool(api.get(path))
    except NotFound:
        was_there = False
    made = api.apply(path, wanted)

    def is_established() -> bool:
        conditions = (api.get(path).get("status") or {}).get("conditions") or ()
        return any((condition["type"], condition["status"]) == ("Established", "True") for condition in conditions)

    until("that the kind is served", is_established)
    yield
    if not was_there:
        api.delete(path, uid=made["metadata"]["uid"])


def refusal(space: Namespace, job: Json) -> str | None:
    """Return the API server's error for a DDPJob; None if it accepts the object."""
    try:
        space.api.create(space.path("ddp.dev/v1alpha1", "ddpjobs"), job, dryRun="All")
    except DdpError as error:
        return str(error)
    return None


@pytest.mark.usefixtures("kind")
def test_the_api_server_accepts_every_example_and_refuses_what_schema_and_rules_can(space: Namespace) -> None:
    assert refusal(space, ddpjob({})) is None
    for path in JOB_FILES:
        assert refusal(space, yaml.safe_load(path.read_text())) is None, path.name
    accepted = [str(changes) for changes, _ in BY_SERVER if refusal(space, ddpjob(changes)) is None]
    accepted += [str(changes) for changes in AS_TEXT if refusal(space, ddpjob(changes)) is None]
    accepted += [name for name in ("a" * 49, "Digits", "1a", "a.b", "a-") if refusal(space, ddpjob({}, name)) is None]
    long = ddpjob({"nnodes": "1:100000"}, "a" * 48)
    assert accepted == []
    assert refusal(space, long) is not None
    assert [str(changes) for changes, _ in IN_VALID if refusal(space, ddpjob(changes)) is not None] == []


def get(space: Namespace, name: str) -> Json:
    return space.api.get(space.path("ddp.dev/v1alpha1", "ddpjobs", name))


def kubectl(
    space: Namespace, *words: str, stdin: str = "", code: int | None = 0, environ: Mapping[str, str] | None = None
) -> str:
    """Run kubectl in the namespace and return its stdout; ``code`` is the required exit code, None for any."""
    command, env = ["kubectl", "-n", space.name, *words], {**os.environ, **(environ or {})}
    done = captured(command, input=stdin, timeout=180, env=env)
    assert code is None or done.returncode == code, done.stdout + done.stderr
    return done.stdout


def a_job(space: Namespace, name: str, command: list[str], **more: Any) -> Json:
    job = ddpjob({"module": None, "command": command, "image": space.image, **TINY, **more}, name)
    return deepcopy(job)


@pytest.mark.usefixtures("kind")
def test_a_submission_that_no_controller_acts_on_creates_the_objects_itself(space: Namespace) -> None:
    created = space.ddp("submit", "--name", "later", "--image", space.image, *ONE_POD, "--command", "sleep 3600").ok()
    assert "No controller has acted on the DDPJob 'later' for 5 s" in created.err
    assert job_kinds.owner_of(space.api.get(space.path("batch/v1", "jobs", "later"))) is None
    space.ddp("delete", "later", "--yes").ok()


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("kind")
def test_a_job_in_a_queue_waits_for_quota_and_is_suspended_and_resumed_through_kueue(
    space: Namespace, queue: str
) -> None:
    with controller(space, "--ddpjobs"):
        size = {"nnodes": 1, "cpu": "40m", "queue": queue}
        for name in ("first", "second"):
            job = a_job(space, name, ["sleep", "3600"], **size)
            space.api.create(space.path("ddp.dev/v1alpha1", "ddpjobs"), job)
            if name == "first":
                until("the first", lambda: phase(space, "first") == "Running")
        until("that the second waits", lambda: phase(space, "second") == "Queued")
        space.ddp("suspend", "first").ok()
        until("the first to stop", lambda: phase(space, "first") == "Suspended")
        until("the second", lambda: phase(space, "second") == "Running")
        space.ddp("delete", "-y", "second").ok()
        space.ddp("resume", "first").ok()
        until("the first again", lambda: phase(space, "first") == "Running")
        space.ddp("delete", "-y", "first").ok()
        until("nothing left", lambda: not space.left())


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("kind")
def test_a_failed_job_gets_a_new_run_by_restart(space: Namespace, tmp_path: Path) -> None:
    script = tmp_path / "fail.py"
    script.write_text("raise SystemExit('no luck')\n")
    with controller(space, "--ddpjobs"):
        job = ("--name", "again", "--image", space.image, "--max-restarts", "0")
        space.ddp("submit", str(script), *job, *ONE_POD, "--wait")
        until("the failure", lambda: phase(space, "again") == "Failed")
        kubectl(space, "annotate", "ddp", "again", "team=vision")
        kubectl(space, "label", "ddp", "again", "app.kubernetes.io/managed-by=Helm", "--overwrite")
        before = get(space, "again")
        space.ddp("restart", "again", "--yes").ok()
        after = get(space, "again")
        assert after["metadata"]["uid"] != before["metadata"]["uid"]
        assert after["status"]["runId"] != before["status"]["runId"]
        assert (after["spec"], after["metadata"]["labels"]) == (before["spec"], before["metadata"]["labels"])
        assert after["metadata"]["annotations"]["team"] == "vision"
        until("the failure of the new run", lambda: phase(space, "again") == "Failed")
        space.ddp("delete", "-y", "again").ok()
        until("nothing left", lambda: not space.left())


def phase(space: Namespace, name: str) -> str:
    return str((get(space, name).get("status") or {}).get("phase"))


@pytest.mark.usefixtures("kind")
def test_what_no_schema_can_refuse_is_one_sentence_in_the_condition_valid(space: Namespace) -> None:
    with controller(space, "--ddpjobs"):
        for number, (changes, _) in enumerate(IN_VALID):
            space.api.create(space.path("ddp.dev/v1alpha1", "ddpjobs"), ddpjob(changes, f"bad-{number}"))
        for number, (_, sentence) in enumerate(IN_VALID):
            name = f"bad-{number}"
            message = until("a verdict", lambda name=name: condition_of(get(space, name), "Valid").get("message"))
            assert sentence in message
    assert space.left() == []
