"""Upgrades of a release of ``charts/ddp-job``: the run that is there stays as it is, or the upgrade stops."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from ddp_trainer.common.constants import SECRET_KEY, Annotation, Label
from kubectl_ddp.engines.registry import ENGINES
from kubectl_ddp.kube import job_kinds
from tests.support.api_server import GROUPS, Answer, ApiServer, Json, Request, kubeconfig, serving
from tests.support.helm import CHARTS, KUBERNETES, Done, Helm, Object, objects_of
from tests.support.rendered import worker_job

CHART: Final = CHARTS / "ddp-job"
NAMESPACE: Final = "team-a"
VALUES: Final[Mapping[str, Any]] = {
    "module": "vision.train",
    "image": "registry.example.com/vision:1",
    "nnodes": "1:3",
    "podMonitor": "never",
}
KINDS: Final[Mapping[str, Mapping[str, str]]] = {
    **GROUPS,
    **{
        f"/apis/{engine.api_version}": {engine.kind: engine.plural}
        | ({engine.runtime.kind: engine.runtime.plural} if engine.runtime else {})
        for engine in ENGINES.values()
    },
}


class Discovered(ApiServer):
    """A server whose groups and kinds Helm discovers."""

    def __init__(self) -> None:
        super().__init__(KINDS)

    def answer(self, request: Request) -> Answer:
        if request.path in self.groups:
            version = request.path.removeprefix("/apis/").removeprefix("/api/")
            kinds = [
                {"kind": kind, "name": plural, "namespaced": True, "verbs": ["get", "list"]}
                for kind, plural in self.groups[request.path].items()
            ]
            return Answer(200, {"kind": "APIResourceList", "groupVersion": version, "resources": kinds})
        match request.path:
            case "/version":
                return Answer(200, {"major": "1", "minor": "34", "gitVersion": f"v{KUBERNETES}"})
            case "/api":
                return Answer(200, {"kind": "APIVersions", "versions": ["v1"]})
            case "/apis":
                return Answer(200, {"kind": "APIGroupList", "groups": [*map(_group, self.groups)][1:]})
        answer = super().answer(request)
        if isinstance(answer.body, dict) and answer.body.get("kind") == "List":
            answer.body["apiVersion"] = "v1"
            names = [item["metadata"]["name"] for item in answer.body["items"]]
            answer.body["items"] = [self.objects[f"{request.path}/{name}"] for name in names]
        return answer


def _group(path: str) -> Json:
    version = path.removeprefix("/apis/")
    name, _, number = version.partition("/")
    found = {"groupVersion": version, "version": number}
    return {"name": name, "versions": [found], "preferredVersion": found}


@dataclass(frozen=True)
class Cluster:
    """A cluster in memory, and a Helm that looks objects up there."""

    helm: Helm
    server: ApiServer
    kubeconfig: Path

    def render(self, values: Mapping[str, Any], *, is_upgrade: bool) -> Done:
        asked = ["template", "run", str(CHART), "--namespace", NAMESPACE, "--values", "-", "--dry-run=server"]
        asked += ["--kubeconfig", str(self.kubeconfig), f"--kube-version={KUBERNETES}", "--disable-openapi-validation"]
        served = [
            f"{path.removeprefix('/apis/')}/{kind}" for path, kinds in self.server.groups.items() for kind in kinds
        ]
        asked += [f"--api-versions={each}" for each in ("v1/Pod", *served)]
        return self.helm.run(*asked, *(["--is-upgrade"] if is_upgrade else []), stdin=json.dumps(values))

    def upgrade(self, values: Mapping[str, Any]) -> Done:
        return self.render(values, is_upgrade=True)

    def install(self, values: Mapping[str, Any]) -> list[Object]:
        """The objects of a release, as Helm would have made them."""
        objects = objects_of(self.render(values, is_upgrade=False).ok().out)
        for item in [item for each in objects for item in (each["items"] if each["kind"] == "List" else [each])]:
            item["metadata"].setdefault("annotations", {})["meta.helm.sh/release-name"] = "run"
            kinds = KINDS.get(f"/apis/{item['apiVersion']}", KINDS["/api/v1"])
            if item["kind"] == "Secret":
                said = item.pop("stringData")[SECRET_KEY]
                item["data"] = {SECRET_KEY: base64.b64encode(said.encode()).decode()}
            if item["kind"] in kinds:
                self.server.put(path_of(item), item)
        return objects


def path_of(item: Object) -> str:
    group = "/api/v1" if item["apiVersion"] == "v1" else f"/apis/{item['apiVersion']}"
    return f"{group}/namespaces/{NAMESPACE}/{KINDS[group][item['kind']]}/{item['metadata']['name']}"


@pytest.fixture
def cluster(each_helm: Helm, tmp_path: Path) -> Iterator[Cluster]:
    with serving(Discovered()) as server:
        yield Cluster(each_helm, server, kubeconfig(tmp_path, server.url))


def flat(done: Done) -> list[Object]:
    objects = objects_of(done.ok().out)
    return [item for each in objects for item in (each["items"] if each["kind"] == "List" else [each])]


def root_of(cluster: Cluster) -> Object:
    """The root object that the cluster has."""
    [root] = [item for item in cluster.server.objects.values() if Annotation.SPEC in item["metadata"]["annotations"]]
    return root


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_values_leave_run_id_nodes_and_suspension(cluster: Cluster, engine: str) -> None:
    values = {**VALUES, "engine": engine}
    cluster.install(values)
    root = root_of(cluster)
    root["metadata"]["labels"][Label.RUN_ID] = "earlier"
    kind = ENGINES[engine]
    job_kinds.put(root, kind.suspend, value=True)
    is_scalable = kind.is_scalable or kind.scaling_gate
    for path in kind.nodes if is_scalable else ():
        job_kinds.put(root, path, 2)
    after = flat(cluster.upgrade(values))
    found = job_kinds.root_of(after)
    assert found["metadata"]["labels"][Label.RUN_ID] == "earlier"
    assert job_kinds.is_suspend_requested(found)
    nodes = 2 if is_scalable else 3
    assert worker_job(after).get("replicas", worker_job(after).get("parallelism")) == nodes


def test_the_secret_of_the_run_is_kept(cluster: Cluster) -> None:
    values = {**VALUES, "engine": "job"}
    [before] = [item for item in cluster.install(values) if item["kind"] == "Secret"]
    [after] = [item for item in flat(cluster.upgrade(values)) if item["kind"] == "Secret"]
    assert base64.b64decode(before["data"][SECRET_KEY]).decode() == after["stringData"][SECRET_KEY]


def test_auto_stays_the_engine_of_the_run_where_another_is_served_now(cluster: Cluster) -> None:
    values = {**VALUES, "engine": "auto"}
    cluster.server.groups = {path: kinds for path, kinds in KINDS.items() if "kubeflow.org" not in path}
    cluster.install(values)
    assert root_of(cluster)["kind"] == "JobSet"
    cluster.server.groups = KINDS
    after = flat(cluster.upgrade(values))
    assert job_kinds.root_of(after)["kind"] == "JobSet"
    assert job_kinds.root_of(after)["metadata"]["annotations"][Annotation.SPEC].count('"engine":"jobset"') == 1


@pytest.mark.parametrize("change", [{"networkPolicy": {"metricsFrom": []}}, {"podMonitor": "always"}, {}])
def test_who_reaches_the_run_may_change(cluster: Cluster, change: dict[str, Any]) -> None:
    cluster.install({**VALUES, "engine": "job"})
    cluster.upgrade({**VALUES, "engine": "job", **change}).ok()


@pytest.mark.parametrize(
    ("change", "keys"),
    [
        ({"nnodes": 2, "args": ["train"]}, "args, nnodes"),
        ({"name": "another"}, "name"),
        ({"engine": "jobset"}, "engine"),
        ({"volumes": [{"name": "more", "emptyDir": {}}]}, "values of its pods, or the chart (ddp-job-"),
        ({"runId": "another"}, "values of its pods, or the chart (ddp-job-"),
    ],
)
def test_what_would_change_the_run_is_refused_with_the_way_out(
    cluster: Cluster, change: dict[str, Any], keys: str
) -> None:
    cluster.install({**VALUES, "engine": "job"})
    done = cluster.upgrade({**VALUES, "engine": "job", **change})
    assert done.code != 0
    said = " ".join(done.err.split())
    assert f"this upgrade would change what stays as long as a run is there: {keys}" in said
    assert f"'helm uninstall run -n {NAMESPACE}'" in said


def test_a_run_that_is_gone_is_not_made_beside_its_store(cluster: Cluster) -> None:
    values = {**VALUES, "engine": "job"}
    cluster.install(values)
    cluster.server.drop(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/run")
    said = " ".join(cluster.upgrade(values).err.split())
    assert "The run 'run' of this release is gone" in said
    assert f"'helm uninstall run -n {NAMESPACE}'" in said


def test_runs_of_other_releases_are_left_alone(cluster: Cluster) -> None:
    cluster.install({**VALUES, "engine": "job", "name": "theirs"})
    for item in cluster.server.objects.values():
        item["metadata"]["annotations"]["meta.helm.sh/release-name"] = "other"
    cluster.upgrade({**VALUES, "engine": "job"}).ok()


def test_one_pod_monitor_of_the_platform_is_enough(cluster: Cluster) -> None:
    values = {**VALUES, "engine": "job", "podMonitor": "auto"}
    kinds = [item["kind"] for item in flat(cluster.render(values, is_upgrade=False))]
    assert "PodMonitor" in kinds
    path = f"/apis/monitoring.coreos.com/v1/namespaces/{NAMESPACE}/podmonitors/ddp-workers"
    cluster.server.put(path, {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "metadata": {}})
    assert "PodMonitor" not in [item["kind"] for item in flat(cluster.render(values, is_upgrade=False))]
