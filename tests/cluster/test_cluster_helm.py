"""Install, upgrade and uninstall ddp-platform on a real cluster with Helm 3; the documents use Helm 4."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from kubectl_ddp.backends.cluster.http.api import collection
from tests.cluster.helm_release import PLATFORM, Release, everything, gone, release, submitter
from tests.cluster.live_cluster import Namespace, until
from tests.support.helm import Helm, helms

pytestmark = pytest.mark.alone

JOB: Final = (
    *("--name", "idle", "--nnodes", "1", "--nproc", "1", "--cpu", "100m", "--memory", "256Mi", "--shm", "32Mi"),
    *("--engine", "job", "--grace", "5s", "--command", "sleep 3600"),
)
PRESETS: Final = {"small": {"summary": "Small.", "settings": {"cpu": {"value": "100m", "reason": "it is a test"}}}}
OPEN: Final = {"metadata": {"name": "open"}, "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{}]}}
AMOUNTS: Final = {"enabled": True, "hard": {"pods": 20}}


@pytest.fixture
def oldest_platform(helm: Helm, space: Namespace) -> Iterator[Release]:
    """A release by the oldest supported Helm."""
    with release(helms().get(3, helm), space) as made:
        yield made


@pytest.mark.timeout(600)
def test_a_release_lives_and_leaves_nothing_while_a_job_runs_on(oldest_platform: Release, tmp_path: Path) -> None:
    platform, space, api = oldest_platform, oldest_platform.space, oldest_platform.space.api
    until("what the cluster puts into every namespace", lambda: _is_furnished(space))
    before = everything(api, space.name)
    platform.run("install", str(PLATFORM), values=platform.values()).ok()
    assert "Succeeded" in platform.run("test").ok().out

    user = _submitter(platform, tmp_path)
    user.ddp("submit", *JOB, "--image", space.image, "--preflight=strict").ok()
    user.ddp("wait", "idle", "--for=running", "--timeout", "120s").ok()
    until("all of its pods", lambda: {phase for _, phase in _pods(user)} == {"Running"})
    pods = _pods(user)

    more = platform.values(quota=AMOUNTS, presets=PRESETS)
    platform.run("upgrade", str(PLATFORM), values=more).ok()
    assert "small" in user.ddp("presets", "-o", "json").ok().out
    user.ddp("submit", *JOB, "--image", space.image, "--preset", "small", "--dry-run=server", "--name", "other").ok()
    assert api.get(space_path(user, "resourcequotas/ddp-quota"))["spec"]["hard"] == {"pods": "20"}

    platform.run("rollback", "1").ok()
    assert "small" not in user.ddp("presets", "-o", "json").ok().out
    assert _pods(user) == pods

    user.ddp("delete", "idle", "--yes").ok()
    platform.run("uninstall").ok()
    assert not platform.is_gone(platform.kept)
    platform.delete_namespace(platform.kept)
    gone(platform, platform.gone)
    gone(platform, platform.kept)
    assert everything(api, space.name) - before == {f"serviceaccounts/{space.name}/nobody"}


def _is_furnished(space: Namespace) -> bool:
    """Return True once controllers have created the default objects of a new namespace."""
    made = (("serviceaccounts", "default"), ("configmaps", "kube-root-ca.crt"))
    return all(
        name in {item["metadata"]["name"] for item in space.api.items(space.path("v1", plural))[0]}
        for plural, name in made
    )


def _jobs_of_tests(platform: Release) -> list[str]:
    """Return the objects that `helm test` created and has not deleted."""
    found = [
        platform.space.api.items(
            collection(version, plural, platform.kept), labelSelector="app.kubernetes.io/component=test"
        )[0]
        for version, plural in (("batch/v1", "jobs"), ("v1", "pods"))
    ]
    return [item["metadata"]["name"] for items in found for item in items]


def _submitter(platform: Release, folder: Path) -> Namespace:
    """The command line of a user whose only role is ``ddp-submit``, in the kept namespace."""
    environ = {"KUBECONFIG": str(submitter(platform.space, platform.kept, "ddp-submit", "ddp-submit-objects"))}
    user = dataclasses.replace(platform.space, name=platform.kept, home=folder, environ=environ, _collections=[])
    until("what the role grants", lambda: user.ddp("list").code == 0)  # the API server reads role bindings with a delay
    return user


def _pods(space: Namespace) -> list[tuple[str, Any]]:
    return [
        (pod["metadata"]["uid"], pod["status"]["phase"]) for role in ("worker", "store") for pod in space.pods(role)
    ]


def space_path(space: Namespace, name: str) -> str:
    return f"/api/v1/namespaces/{space.name}/{name}"


def test_what_the_cluster_says_against_a_release_is_said_before_anything_is_made(platform: Release) -> None:
    own, values = platform.space.name, platform.values()
    for namespaces, sentence in (
        ([{"name": own}], f"namespaces: '{own}' exists and does not belong to this release; set its create to false"),
        (
            [{"name": platform.gone, "create": False}],
            f"'{platform.gone}' has create: false, and the cluster has no such namespace; create it first",
        ),
        (
            [{"name": own, "create": False, "podSecurity": "privileged", "rdma": True}],
            f"'{own}' needs Pod Security level privileged for RDMA, and the existing namespace enforces restricted",
        ),
    ):
        done = platform.run("install", str(PLATFORM), values={**values, "namespaces": namespaces})
        assert done.code != 0
        assert sentence in done.err
    platform.run("install", str(PLATFORM), values={**values, "test": {"enabled": False}}).ok()
    other = Release(platform.helm, platform.space, name="second")
    done = other.run("install", str(PLATFORM), values={**values, "namespaces": [{"name": own, "create": False}]})
    assert done.code != 0
    assert f"The cluster has a platform already: the release 'ddp' in the namespace '{own}'" in done.err


@pytest.mark.timeout(300)
def test_helm_test_shows_that_a_policy_lets_everybody_in_and_takes_away_what_it_has_made(platform: Release) -> None:
    """Needs the newest Helm: before 3.18, `helm test` prints no pod logs."""
    platform.run("install", str(PLATFORM), values=platform.values()).ok()
    platform.space.api.create(collection("networking.k8s.io/v1", "networkpolicies", platform.kept), OPEN)
    done = platform.run("test")
    assert done.code != 0
    assert "A pod of another job reached the rendezvous" in done.out + done.err
    until("the end of a failed test", lambda: not _jobs_of_tests(platform))
