"""A platform with its controller, and jobs as releases of ``charts/ddp-job``, on a real cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.errors import NotFound
from kubectl_ddp.kube import ddpjob
from tests.cluster.helm_release import PLATFORM, release
from tests.cluster.live_cluster import Namespace, until
from tests.cluster.test_cluster_ddpjob import DEFINITIONS, get, kubectl, phase
from tests.support.helm import CHARTS, Done, Helm, helms

pytestmark = pytest.mark.alone  # where the kind is served, every submission in the cluster creates it
CHART = str(CHARTS / "ddp-job")
DEFINITION = f"{DEFINITIONS}/ddpjobs.ddp.dev"
SMALL: dict[str, Any] = {"engine": "job", "nproc": 1, "memory": "512Mi", "shm": "64Mi", "grace": "5s"}
DIGITS: dict[str, Any] = {"module": "ddp_trainer", "args": ["train", "--epochs", "2", "--seed", "0"], "cpu": "300m"}
SLEEPER: dict[str, Any] = {"command": ["sleep", "3600"], "nnodes": "1:2", "cpu": "50m"}


Platform = tuple[Namespace, Callable[[], object]]
"""Namespace for training, and what uninstalls the platform."""


@pytest.fixture
def training(helm: Helm, space: Namespace, api: Api, controller_image: str) -> Iterator[Platform]:
    """A namespace of a platform whose controller manages it, and what uninstalls the platform."""
    path, _, tag = controller_image.rpartition(":")
    controller = {"image": {"repository": path.rpartition("/")[2], "tag": tag}, "replicas": 1}
    with release(helm, space) as made:
        try:
            values = made.values(test={"enabled": False}, controller={**controller, "namespaces": [made.kept]})
            made.run("install", str(PLATFORM), "--wait", "--timeout", "3m", values=values).ok()
            yield (
                dataclasses.replace(space, name=made.kept, _collections=[]),
                lambda: made.run("uninstall", "--wait").ok(),
            )
        finally:
            with contextlib.suppress(NotFound):
                api.delete(DEFINITION, uid=api.get(DEFINITION)["metadata"]["uid"])


def helm_in(space: Namespace, helm: Helm, verb: str, name: str, values: Mapping[str, Any] | None = None) -> Done:
    words = [CHART, "--values", "-"] if values is not None else []
    return helm.run(verb, name, *words, "--namespace", space.name, stdin=json.dumps(values or {}), seconds=120)


@pytest.mark.timeout(600)
def test_jobs_live_as_releases_and_the_platform_comes_and_goes(training: Platform, api: Api) -> None:
    space, uninstall_platform = training
    first, last = helms()[min(helms())], helms()[max(helms())]
    trains_as_a_release(space, last, first)
    is_scaled_by_upgrades(space, last)
    applies_as_a_manifest(space, last)

    uninstall_platform()
    assert api.get(DEFINITION)["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
    size = ("--nnodes", "1", "--nproc", "1", "--cpu", "50m", "--memory", "128Mi", "--shm", "16Mi", "--grace", "5s")
    job = ("--name", "later", "--engine", "job", "--image", space.image, *size, "--command", "sleep 3600")
    said = space.ddp("submit", *job).ok()
    assert "No controller has acted on the DDPJob 'later' for 5 s" in said.err
    assert ddpjob.owner_of(space.api.get(space.path("batch/v1", "jobs", "later"))) is None
    space.ddp("delete", "later", "--yes").ok()


def trains_as_a_release(space: Namespace, helm: Helm, other: Helm) -> None:
    """A release trains to its end, and an upgrade with the same values by the other Helm changes nothing."""
    values = {**SMALL, **DIGITS, "image": space.image}
    assert "kubectl get ddp digits" in helm_in(space, helm, "install", "digits", values).ok().out
    kubectl(space, "wait", "--for=condition=Succeeded", "ddp/digits", "--timeout=180s")
    before = get(space, "digits")
    helm_in(space, other, "upgrade", "digits", values).ok()
    assert get(space, "digits")["metadata"]["generation"] == before["metadata"]["generation"]
    helm_in(space, other, "uninstall", "digits").ok()
    until("nothing left", lambda: not space.left())


def is_scaled_by_upgrades(space: Namespace, helm: Helm) -> None:
    """An upgrade scales a release; what cannot change is refused and changes nothing; a rollback scales it back."""
    values = {**SMALL, **SLEEPER, "image": space.image}
    helm_in(space, helm, "install", "life", values).ok()
    until("two nodes", lambda: nodes(space, "life") == "2/2")
    pods = {pod["metadata"]["uid"] for pod in space.pods()}
    helm_in(space, helm, "upgrade", "life", values | {"replicas": 1}).ok()
    until("one node", lambda: nodes(space, "life") == "1/1")
    refused = helm_in(space, helm, "upgrade", "life", values | {"nnodes": "1:3"})
    assert refused.code != 0
    assert "only replicas, suspend, ttl can change" in refused.err
    assert get(space, "life")["spec"]["nnodes"] == "1:2"
    helm.run("rollback", "life", "1", "--namespace", space.name).ok()
    assert "replicas" not in get(space, "life")["spec"]
    helm_in(space, helm, "upgrade", "life", values | {"replicas": 2}).ok()
    until("two nodes again", lambda: nodes(space, "life") == "2/2")
    assert pods & {pod["metadata"]["uid"] for pod in space.pods()}
    helm_in(space, helm, "uninstall", "life").ok()
    until("nothing left", lambda: not space.left())


def nodes(space: Namespace, name: str) -> str:
    """Ready nodes of those that a DDPJob has now."""
    return str((get(space, name).get("status") or {}).get("nodes"))


def applies_as_a_manifest(space: Namespace, helm: Helm) -> None:
    """The rendered object is applied by kubectl on either side; it differs from the cluster in nothing afterwards."""
    values = {**SMALL, **SLEEPER, "image": space.image, "suspend": True}
    for name, how in (("by-client", ()), ("by-server", ("--server-side", "--field-manager=argocd-controller"))):
        text = helm_in(space, helm, "template", name, values).ok().out
        for _ in range(2):
            kubectl(space, "apply", *how, "-f", "-", stdin=text)
            kubectl(space, "scale", f"ddp/{name}", "--replicas=1")
            kubectl(space, "diff", *how, "-f", "-", stdin=text)
        assert get(space, name)["spec"]["replicas"] == 1
        until("the state", lambda name=name: phase(space, name) == "Suspended")
        kubectl(space, "delete", "-f", "-", stdin=text)
