"""``--gang native`` against API servers that serve its kinds, and that do not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubectl_ddp.cli.run import run
from tests.support.api_server import GROUPS, Answer, ApiServer, kubeconfig, serving

NAMESPACE = "/namespaces/team"
KINDS = {"Workload": "workloads", "PodGroup": "podgroups"}
JOB = ("--name", "pair", "--image", "example.com/train:1", "--command", "true", "--engine", "job", "--gang", "native")
RULES = "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
SCHEMA = "GET /openapi/v3/apis/batch/v1"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with serving(ApiServer()) as made:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, made.url)))
        monkeypatch.setenv("HOME", str(tmp_path))
        made.put("/api/v1/namespaces/team", {})
        yield made


@pytest.mark.parametrize("command", ["submit", "preflight"])
def test_gates_that_are_off_are_named_before_anything_is_created(
    server: ApiServer, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([command, *JOB, "--preflight=off"] if command == "submit" else [command, *JOB]) == 4
    told = capsys.readouterr().err
    assert "does not serve scheduling.k8s.io Workload" in told
    assert "GenericWorkload and GangScheduling are off" in told
    assert not server.asked("POST")


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1"])
def test_the_objects_have_the_version_that_is_served(server: ApiServer, version: str) -> None:
    server.groups = {**GROUPS, f"/apis/scheduling.k8s.io/{version}": KINDS}
    assert run(["submit", *JOB, "--preflight=off"]) == 0
    made = [path for path in server.asked("POST") if "/scheduling.k8s.io/" in path]
    assert made == [f"/apis/scheduling.k8s.io/{version}{NAMESPACE}/{plural}" for plural in ("workloads", "podgroups")]


def test_an_engine_that_drops_the_group_of_its_pods_is_refused(
    server: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    server.groups = {**GROUPS, "/apis/scheduling.k8s.io/v1alpha2": KINDS}
    server.next(SCHEMA, Answer(200, {"components": {}}))
    rules = [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    server.next(RULES, Answer(201, {"status": {"resourceRules": rules}}))
    assert run(["preflight", *JOB]) == 4
    assert "The Job of this cluster drops spec.schedulingGroup of its pods" in capsys.readouterr().out
    assert f"/apis/scheduling.k8s.io/v1alpha2{NAMESPACE}/workloads" in server.asked("POST")
    assert f"/apis/scheduling.k8s.io/v1alpha2{NAMESPACE}/podgroups" not in server.asked("POST"), "its Workload is first"
