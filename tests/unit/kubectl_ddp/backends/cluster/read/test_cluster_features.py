"""Detection of optional features by schemas, dry runs and configurations."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.backends.cluster.read.cluster_info import detect_features, passes_scheduling_group
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.preflight.doctor import CONFIGURED_GATES, ClusterFeatures
from kubectl_ddp.preflight.model import Unknown
from kubectl_ddp.values.program import Gang
from tests.support.api_server import GROUPS, Answer, ApiServer, status

JOBS = "POST /apis/batch/v1/namespaces/team/jobs"
NATIVE = {"Workload": "workloads", "PodGroup": "podgroups"}
pytestmark = pytest.mark.api_groups({**GROUPS, "/apis/scheduling.k8s.io/v1alpha2": NATIVE})


def detected(api: Api, *engines: str) -> ClusterFeatures:
    return detect_features(api, Discovery(api), "team", [*engines])


def schema(engine: str, *fields: str) -> tuple[str, Answer]:
    """The request for the schema of an engine whose pods have those fields, and its answer."""
    pod = {"properties": {field: {"type": "object"} for field in fields}}
    return f"GET /openapi/v3/apis/{ENGINES[engine].api_version}", Answer(200, {"components": {"schemas": {"Pod": pod}}})


def stored(**fields: Any) -> Answer:
    """The answer of an API server that keeps only these fields of the container."""
    return Answer(201, {"spec": {"template": {"spec": {"containers": [{"name": "check", **fields}]}}}})


def test_the_native_gang_is_found_with_the_engines_that_pass_its_group_on(server: ApiServer, api: Api) -> None:
    server.next(*schema("job", "schedulingGroup", "volumes"))
    server.next(*schema("pytorchjob", "volumes"))
    found = detected(api, "job", "pytorchjob")
    assert found.gangs == {Gang.NATIVE: "scheduling.k8s.io/v1alpha2"}
    assert found.native_engines == ["job"]


def test_no_schema_is_read_where_the_native_gang_is_off(server: ApiServer, api: Api) -> None:
    server.groups = GROUPS
    assert detected(api, "job").gangs == {}
    assert not [path for path in server.asked("GET") if path.startswith("/openapi")]


def test_a_schema_that_cannot_be_read_leaves_the_question_open(server: ApiServer, api: Api) -> None:
    server.next("GET /openapi/v3/apis/batch/v1", Answer(403, status(403, "Forbidden", "no")))
    assert isinstance(passes_scheduling_group(api, ENGINES["job"]), Unknown)


def test_a_restart_action_counts_if_the_dry_run_of_a_job_keeps_it(server: ApiServer, api: Api) -> None:
    assert detected(api).restart_actions == ["Restart", "RestartAllContainers"]
    assert all(request.query["dryRun"] == "All" for request in server.requests if request.method == "POST")


@pytest.mark.parametrize(("answers", "actions"), [
    ((stored(), stored()), []),
    ((stored(restartPolicyRules=[{}]), Answer(422, status(422, "Invalid", "action"))), ["Restart"]),
    ((Answer(403, status(403, "Forbidden", "no")),), None),
])  # fmt: skip
def test_a_gate_that_is_off_drops_or_refuses_the_action(
    server: ApiServer, api: Api, answers: tuple[Answer, ...], actions: list[str] | None
) -> None:
    server.next(JOBS, *answers)
    assert detected(api).restart_actions == actions


def test_gates_are_read_from_the_configuration_of_their_controllers(server: ApiServer, api: Api) -> None:
    jobset, kueue = CONFIGURED_GATES.items()
    assert detected(api).gates == {}
    server.put(jobset[1], {"data": {"config.yaml": yaml.safe_dump({"featureGates": {"ElasticJobSet": True}})}})
    server.put(kueue[1], {"data": {"config.yaml": "kind: Configuration"}})
    assert detected(api).gates == {"ElasticJobSet": True, kueue[0]: None}
