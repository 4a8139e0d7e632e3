"""A release of ddp-platform on a real cluster, and a list of all objects of the cluster."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.errors import DdpError, NotFound
from tests.cluster.live_cluster import Namespace, until
from tests.support.helm import CHARTS, Done, Helm

PLATFORM: Final = CHARTS / "ddp-platform"
COMES_AND_GOES: Final = frozenset({"events", "leases", "endpointslices", "endpoints", "nodes", "componentstatuses"})
"""Kinds whose objects other components create and delete at any time."""
EVERYBODYS: Final = frozenset({"default", "kube-system", "kube-public", "monitoring", "kueue-system", "kubeflow"})
"""Namespaces of every test cluster in which a release could leave objects."""


@dataclass(frozen=True)
class Release:
    """One release by one version of Helm, in a namespace of the test."""

    helm: Helm
    space: Namespace
    name: str = "ddp"

    @property
    def kept(self) -> str:
        """A namespace for training that outlives the release."""
        return f"{self.space.name}-kept"

    @property
    def gone(self) -> str:
        """A namespace for training that is deleted with the release."""
        return f"{self.space.name}-gone"

    @property
    def image(self) -> dict[str, str]:
        """Values of the chart for the trainer image."""
        path, _, tag = self.space.image.rpartition(":")
        registry, _, repository = path.rpartition("/")
        return {"registry": registry, "repository": repository, "tag": tag}

    def values(self, **more: Any) -> dict[str, Any]:
        """Minimal values of a release, and ``more``. Without the kind DDPJob, which every submission would use."""
        namespaces = [{"name": self.kept}, {"name": self.gone, "keep": False}]
        return {"namespaces": namespaces, "image": self.image, "controller": {"enabled": False}, **more}

    def run(self, verb: str, *words: str, values: Mapping[str, Any] | None = None, seconds: float = 300) -> Done:
        """Run a Helm command on this release, with a values file if there are values."""
        details = [verb, self.name, *words, "--namespace", self.space.name]
        if values is None:
            return self.helm.run(*details, seconds=seconds)
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(values, file)
            file.flush()
            return self.helm.run(*details, "--values", file.name, seconds=seconds)

    def remove(self) -> None:
        """Uninstall the release and delete its namespaces."""
        self.run("uninstall")
        for namespace in (self.kept, self.gone):
            self.delete_namespace(namespace)

    def delete_namespace(self, name: str) -> None:
        """Delete a namespace of the release if it exists."""
        with contextlib.suppress(NotFound):
            found = self.space.api.get(f"/api/v1/namespaces/{name}")
            self.space.api.delete(f"/api/v1/namespaces/{name}", uid=found["metadata"]["uid"])

    def is_gone(self, name: str) -> bool:
        """Return True if the namespace no longer exists."""
        try:
            self.space.api.get(f"/api/v1/namespaces/{name}")
        except NotFound:
            return True
        return False


@contextlib.contextmanager
def release(helm: Helm, space: Namespace) -> Iterator[Release]:
    """A release that the test installs; it is always uninstalled at the end."""
    made = Release(helm, space)
    try:
        yield made
    finally:
        made.remove()


def everything(api: Api, own: str) -> set[str]:
    """All objects without a namespace, in shared namespaces, and in namespaces whose name begins with ``own``."""
    found = set()
    for version, resource in _resources(api):
        path = f"/{'api' if version == 'v1' else 'apis'}/{version}/{resource['name']}"
        with contextlib.suppress(DdpError):  # an aggregated API that is down has no objects of ours
            items, _ = api.items(path)
            found |= {name for item in items if (name := _name(resource["name"], item, own))}
    return found


def _name(plural: str, item: Mapping[str, Any], own: str) -> str:
    metadata = item["metadata"]
    namespace = metadata.get("namespace", "")
    is_others = "ddp-test-" in metadata["name"] and own not in metadata["name"]
    if is_others or (namespace and namespace not in EVERYBODYS and not namespace.startswith(own)):
        return ""
    return f"{plural}/{namespace}/{metadata['name']}"


def _resources(api: Api) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the group version and the resource of every kind that can be listed and deleted."""
    groups = [group["preferredVersion"]["groupVersion"] for group in api.get("/apis")["groups"]]
    for version in ("v1", *groups):
        with contextlib.suppress(DdpError):
            for resource in api.get(f"/{'api' if version == 'v1' else 'apis'}/{version}")["resources"]:
                can = {"list", "delete"} <= set(resource["verbs"]) and "/" not in resource["name"]
                if can and resource["name"] not in COMES_AND_GOES:
                    yield version, resource


def submitter(space: Namespace, namespace: str, *roles: str) -> Path:
    """Return a kubeconfig of a user whose only rights are the given roles in one namespace."""
    path = space.kubeconfig_of_nobody()
    for role in roles:
        space.api.create(
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
            {
                "metadata": {"name": role},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
                "subjects": [{"kind": "ServiceAccount", "name": "nobody", "namespace": space.name}],
            },
        )
    return path


def gone(made: Release, name: str) -> None:
    """Wait until a namespace is deleted."""
    until(f"the end of namespace {name}", lambda: made.is_gone(name), seconds=180)
