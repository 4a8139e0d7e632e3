"""``--gang native`` against API servers that serve its kinds, and that do not."""

from __future__ import annotations

import pytest

from kubectl_ddp.cli.run import run
from tests.support.api_server import ALL_ALLOWED, GROUPS, Answer, ApiServer
from tests.support.command_line import CommandLine

NAMESPACE = "/namespaces/team"
KINDS = {"Workload": "workloads", "PodGroup": "podgroups"}
JOB = ("--name", "pair", "--image", "example.com/train:1", "--command", "true", "--engine", "job", "--gang", "native")
RULES = "POST /apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
SCHEMA = "GET /openapi/v3/apis/batch/v1"


@pytest.fixture
def cluster(cluster: ApiServer) -> ApiServer:
    cluster.put("/api/v1/namespaces/team", {})
    return cluster


@pytest.mark.parametrize("command", ["submit", "preflight"])
def test_gates_that_are_off_are_named_before_anything_is_created(
    cluster: ApiServer, command: str, cli: CommandLine
) -> None:
    errors = cli(*([command, *JOB, "--preflight=off"] if command == "submit" else [command, *JOB]), code=4).err
    assert "does not serve scheduling.k8s.io Workload" in errors
    assert "GenericWorkload and GangScheduling are off" in errors
    assert not cluster.asked("POST")


@pytest.mark.parametrize("version", ["v1alpha2", "v1beta1"])
def test_the_objects_have_the_version_that_is_served(cluster: ApiServer, version: str) -> None:
    cluster.groups = {**GROUPS, f"/apis/scheduling.k8s.io/{version}": KINDS}
    assert run(["submit", *JOB, "--preflight=off"]) == 0
    made = [path for path in cluster.asked("POST") if "/scheduling.k8s.io/" in path]
    assert made == [f"/apis/scheduling.k8s.io/{version}{NAMESPACE}/{plural}" for plural in ("workloads", "podgroups")]


def test_an_engine_that_drops_the_group_is_refused(cluster: ApiServer, cli: CommandLine) -> None:
    cluster.groups = {**GROUPS, "/apis/scheduling.k8s.io/v1alpha2": KINDS}
    cluster.next(SCHEMA, Answer(200, {"components": {}}))
    cluster.next(RULES, ALL_ALLOWED)
    assert "The Job of this cluster drops spec.schedulingGroup of its pods" in cli("preflight", *JOB, code=4).out
    assert f"/apis/scheduling.k8s.io/v1alpha2{NAMESPACE}/workloads" in cluster.asked("POST")
    assert f"/apis/scheduling.k8s.io/v1alpha2{NAMESPACE}/podgroups" not in cluster.asked("POST"), (
        "its Workload is first"
    )
