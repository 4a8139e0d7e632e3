"""``charts/ddp-job`` on a real cluster, by Helm 3 and by Helm 4: a run trains, is upgraded, and is gone."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from ddp_trainer.common.constants import Label
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.engines.registry import ENGINES as ENGINE_KINDS
from tests.cluster.live_cluster import Namespace, until
from tests.support.helm import CHARTS, Done, Helm

CHART = str(CHARTS / "ddp-job")
ENGINES = {3: ("trainjob", "pytorchjob"), 4: ("trainjob", "job")}
"""A TrainJob by both, since Helm's order of kinds decides whether one is taken at all."""
SMALL: dict[str, Any] = {
    "module": "ddp_trainer",
    "args": ["train", "--task", "digits", "--epochs", 2, "--global-batch", 64, "--seed", 0],
    "nnodes": 1,
    "cpu": "500m",
    "memory": "1Gi",
    "shm": "128Mi",
}


OPEN: dict[str, Any] = {"networkPolicy": {"metricsFrom": []}}
"""Everyone may read the metrics."""


def helm_in(space: Namespace, helm: Helm, verb: str, release: str, values: Mapping[str, Any] | None = None) -> Done:
    words = [verb, release, *([CHART, "--values", "-"] if values is not None else []), "--namespace", space.name]
    return helm.run(*words, stdin=json.dumps(values or {}), seconds=240)


def served(space: Namespace, engines: tuple[str, ...]) -> list[str]:
    found = []
    for engine in engines:
        root = ENGINE_KINDS[engine]
        try:
            space.api.get(space.path(root.api_version, root.plural))
        except NotServed:
            continue
        found.append(engine)
    return found


@pytest.mark.timeout(300)
def test_a_release_trains_to_its_end_stays_as_it_is_and_leaves_nothing(space: Namespace, each_helm: Helm) -> None:
    runs = {
        engine: SMALL | {"engine": engine, "image": space.image} for engine in served(space, ENGINES[each_helm.major])
    }
    for name, values in runs.items():
        said = helm_in(space, each_helm, "install", name, values).ok().out
        assert f"kubectl ddp status {name} -n {space.name}" in said
        assert f"The run {name} is a {ENGINE_KINDS[name].kind} of 1 node with 1 process each" in said
    for name in runs:
        assert space.ddp("wait", name, "--for=complete", "--timeout", "4m").code == 0
    name, values = next(iter(reversed(runs.items())))
    root = ENGINE_KINDS[name]
    path = space.path(root.api_version, root.plural, name)
    before = space.api.get(path)
    stays_as_it_is(space, each_helm, name, values)
    assert space.api.get(path)["spec"] == before["spec"]
    assert sorted(job["name"] for job in space.ddp("list", "-o", "json").ok().json["items"]) == sorted(runs)
    for each in runs:
        helm_in(space, each_helm, "uninstall", each).ok()
    until("nothing left", lambda: not space.left())


def secrets_of(space: Namespace, name: str) -> list[Any]:
    """Name and content of the one Secret of a run."""
    found, _ = space.api.items(space.path("v1", "secrets"), labelSelector=f"{Label.JOB}={name}")
    [secret] = found
    return [secret["metadata"]["uid"], secret["data"]]


def stays_as_it_is(space: Namespace, helm: Helm, name: str, values: dict[str, Any]) -> None:
    """What may be changed is, and the rest is refused with the way out."""
    secret = secrets_of(space, name)
    helm_in(space, helm, "upgrade", name, values).ok()
    helm_in(space, helm, "upgrade", name, values | OPEN).ok()
    assert secrets_of(space, name) == secret
    policy = space.path("networking.k8s.io/v1", "networkpolicies", name)
    assert "from" not in space.api.get(policy)["spec"]["ingress"][1]
    helm_in(space, helm, "rollback", name).ok()
    assert "from" in space.api.get(policy)["spec"]["ingress"][1]
    for change, said in (
        ({"nnodes": 2, "args": ["train"]}, "stays as long as a run is there: args, nnodes."),
        ({"name": "another"}, "stays as long as a run is there: name."),
        ({"engine": "jobset"}, "stays as long as a run is there: engine."),
    ):
        done = helm_in(space, helm, "upgrade", name, values | change)
        assert done.code != 0
        words = " ".join(done.err.split())
        assert f"The run '{name}' of this release is there" in words
        assert said in words
        assert f"'helm uninstall {name} -n {space.name}'" in words


@pytest.mark.timeout(300)
def test_an_upgrade_leaves_a_suspended_run_suspended_and_a_scaled_one_scaled(space: Namespace, each_helm: Helm) -> None:
    nowhere = {"nodeSelector": {"place": "nowhere"}}
    values = SMALL | {"image": space.image, "engine": "job", "nnodes": "1:3"} | nowhere
    helm_in(space, each_helm, "install", "kept", values).ok()
    path = space.path("batch/v1", "jobs", "kept")
    assert space.api.get(path)["spec"]["template"]["spec"]["nodeSelector"] == nowhere["nodeSelector"]
    space.ddp("scale", "kept", "--nnodes", "2", "--no-wait").ok()
    space.ddp("suspend", "kept").ok()
    before = space.api.get(path)["spec"]
    assert (before["parallelism"], before["suspend"]) == (2, True)
    helm_in(space, each_helm, "upgrade", "kept", values | OPEN).ok()
    assert space.api.get(path)["spec"] == before
    assert f"'helm uninstall kept -n {space.name}'" in space.ddp("delete", "kept", "--yes").ok().err
    until("the run gone", lambda: "jobs/kept" not in space.left())
    gone = " ".join(helm_in(space, each_helm, "upgrade", "kept", values).err.split())
    assert "The run 'kept' of this release is gone" in gone
    helm_in(space, each_helm, "uninstall", "kept").ok()
    until("nothing left", lambda: not space.left())


@pytest.mark.timeout(300)
def test_values_that_the_plugin_writes_train_and_another_volume_is_refused(space: Namespace, each_helm: Helm) -> None:
    words = ("render", "--module", "ddp_trainer", "--name", "written", "--engine", "job", "--image", space.image)
    size = ("--nnodes", "1:2", "--cpu", "500m", "--memory", "1Gi", "--mount", "emptydir=64Mi:/cache")
    program = ("--", "train", "--task", "digits", "--epochs", "2", "--global-batch", "64", "--seed", "0")
    values = yaml.safe_load(space.ddp(*words, *size, "-o", "helm-values", *program).ok().out)
    assert (values["nnodes"], values["volumes"][0]["emptyDir"]) == ("1:2", {"sizeLimit": "64Mi"})
    helm_in(space, each_helm, "install", "written", values).ok()
    assert space.ddp("wait", "written", "--for=complete", "--timeout", "4m").code == 0
    helm_in(space, each_helm, "upgrade", "written", values).ok()
    other = values | {"volumes": [{"name": "mount-0", "emptyDir": {"sizeLimit": "32Mi"}}]}
    said = " ".join(helm_in(space, each_helm, "upgrade", "written", other).err.split())
    assert "stays as long as a run is there: values of its pods, or the chart" in said
    helm_in(space, each_helm, "uninstall", "written").ok()
    until("nothing left", lambda: not space.left())
