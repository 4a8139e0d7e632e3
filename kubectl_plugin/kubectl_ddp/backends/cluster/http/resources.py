"""Served kinds of an API server and their plurals, from its discovery."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping
from typing import Final

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import Forbidden, Unreachable
from kubectl_ddp.kube.objects import Object

PROVIDERS: Final[Mapping[str, str]] = {
    **{
        kind: f"Install {engine.product}, or choose another --engine; job needs no operator."
        for engine in ENGINES.values()
        for kind in (engine.kind, engine.runtime and engine.runtime.kind)
        if kind and engine.product
    },
    "PodGroup": "Install the scheduler that --gang names, or leave --gang out.",
    "Workload": "Set the feature gates GenericWorkload and GangScheduling, or use another --gang.",
    "ComputeDomain": "Install NVIDIA's DRA driver for GPUs, 25.8 or newer, or name another --fabric.",
    "ResourceClaimTemplate": "Kubernetes 1.34 or newer serves it; or name another --fabric.",
    "PodMonitor": "Install the Prometheus operator.",
}
"""Kind that is not built into Kubernetes → how to install it."""


AGGREGATED: Final = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
"""Format in which API servers from version 1.30 return all served resources in one response."""

OWN: Final[Mapping[str, Mapping[str, str]]] = {
    "v1": {"Service": "services", "ConfigMap": "configmaps", "Secret": "secrets"}
}
"""Kinds that every API server serves, so no request is needed."""

BUILT_IN: Final = frozenset({"", "apps", "batch", "discovery.k8s.io", "networking.k8s.io", "scheduling.k8s.io"})
"""Groups that every API server serves."""

Group = str
"""Group and version, as in ``batch/v1``."""


class Discovery:
    """Served kinds and their plurals. Needs one request, or one per group with an older server."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._lock = threading.RLock()
        self._groups: dict[Group, Mapping[str, str]] = dict(OWN)
        self._plurals: dict[str, set[str]] = {}
        """Group without version → resources, from the response with all groups."""
        self._stale: set[Group] = set()
        """Groups whose aggregated API server was unavailable. Their data may be old, so it is refreshed on use."""
        self._is_aggregated: bool | None = None
        """True if the server returned all groups in one response; ``None`` before the request."""

    def resource_for_object(self, item: Object) -> str | None:
        """Return the plural of an object's kind; ``None`` if the cluster does not serve it."""
        return self.resource_for_kind(str(item["apiVersion"]), str(item["kind"]))

    def resource_for_kind(self, group: Group, kind: str) -> str | None:
        """Return the plural of a kind in a group and version; ``None`` if the cluster does not serve it.

        Raises:
            Unreachable: If the group is unknown and its aggregated API server is unavailable.
        """
        with self._lock:  # concurrent checks must not read partial data as "not served"
            if group not in self._groups and self._is_aggregated is None:
                self._discover_all()
            if group in self._stale:
                self._refresh_stale_group(group)
            if group not in self._groups:
                self._groups[group] = {} if self._is_aggregated else self._fetch_plurals(group)
            return self._groups[group].get(kind)

    def group_resources(self, objects: Iterable[Object]) -> list[tuple[str, str]]:
        """Return API group and plural of each object, without kinds that are not served."""
        found = ((str(item["apiVersion"]), self.resource_for_object(item)) for item in objects)
        return [(version.rpartition("/")[0], plural) for version, plural in found if plural is not None]

    def served_versions(self, group: str) -> list[str]:
        """Return the served versions of a group, the preferred one first; empty if an older server does not report
        them.
        """
        with self._lock:
            if self._is_aggregated is None:
                self._discover_all()
        return [version.partition("/")[2] for version in self._groups if version.partition("/")[0] == group]

    def filter_served(self, kinds: Iterable[tuple[str, str]]) -> frozenset[tuple[str, str]]:
        """Return the served ones of these kinds (API group and plural)."""
        return frozenset(kind for kind in kinds if self.has(*kind))

    def has(self, group: str, plural: str) -> bool:
        """Return whether a resource is served in any version. On an older server, only built-in kinds and root objects
        count.
        """
        versions = self.served_versions(group)
        with self._lock:
            if self._is_aggregated:
                for stale in self._stale & {f"{group}/{version}" for version in versions}:
                    with contextlib.suppress(Unreachable):
                        self._refresh_stale_group(stale)
                return not group or plural in self._plurals.get(group, ())
        if group in BUILT_IN:
            return True
        named = [engine for engine in ENGINES.values() if (engine.group, engine.plural) == (group, plural)]
        return any(plural in self._groups[f"{group}/{version}"].values() for version in versions) or any(
            self.resource_for_kind(engine.api_version, engine.kind) is not None for engine in named
        )

    def _discover_all(self) -> None:
        try:
            document = self._api.get_with_accept("/apis", AGGREGATED)
        except (NotServed, Forbidden):  # single groups may still be readable
            document = {}
        self._is_aggregated = document.get("kind") == "APIGroupDiscoveryList"
        for group in document.get("items") or () if self._is_aggregated else ():
            for version in group["versions"]:
                name = f"{group['metadata']['name']}/{version['version']}"
                served = self._plurals.setdefault(group["metadata"]["name"], set())
                self._groups[name] = _resources_by_kind(version)
                served.update(resource["resource"] for resource in version.get("resources") or ())
                if version.get("freshness") == "Stale":  # its server is away, which affects few jobs
                    self._stale.add(name)

    def _refresh_stale_group(self, group: Group) -> None:
        """Refresh a stale group. Without an answer, known data is kept. Raises Unreachable if there is none."""
        try:
            self._groups[group] = self._fetch_plurals(group)
            self._plurals[group.partition("/")[0]].update(self._groups[group].values())
        except Unreachable:
            if not self._groups[group]:
                raise
        self._stale.discard(group)

    def _fetch_plurals(self, group: Group) -> dict[str, str]:
        try:
            listed = self._api.get(f"/apis/{group}" if "/" in group else f"/api/{group}")
        except NotServed:
            return {}
        return {item["kind"]: item["name"] for item in listed.get("resources", ()) if "/" not in item["name"]}


def _resources_by_kind(version: Object) -> dict[str, str]:
    """Return kind → plural. Resources without a kind are skipped: they exist only for their subresources."""
    kinds = [((item.get("responseKind") or {}).get("kind"), item) for item in version.get("resources") or ()]
    return {kind: item["resource"] for kind, item in kinds if kind}


def not_served(api_version: str, kind: str, context: str) -> NotServed:
    """Return the error for a required kind that the cluster does not serve."""
    return NotServed(
        f"The cluster of context '{context}' does not know {kind} ({api_version}).", hint=PROVIDERS.get(kind, "")
    )
