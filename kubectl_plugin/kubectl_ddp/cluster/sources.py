"""Where the objects stand that decide what becomes of a job, and what is kept of each: one table.

``why`` and ``bundle`` read it through ``around``, ``preflight`` through ``facts``, ``capacity`` through ``stock`` and
``doctor`` through ``examine``; they differ in what they ask for, and in what a refusal means to them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import PAGE, Api
from kubectl_ddp.cluster.api_errors import NotServed
from kubectl_ddp.cluster.pod_transform import strip_scheduled_pod, without_managers
from kubectl_ddp.cluster.resources import collection
from kubectl_ddp.related_objects import RelatedKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a kind is read."""

    versions: tuple[str, ...] = ("v1",)
    """The first of these that the cluster serves."""
    plural: str
    is_everywhere: bool = False
    """Of all namespaces, or of none; else of one."""
    fields: str = ""
    """Field selector."""
    reduce: Callable[[Object], Object | None] = without_managers
    """What is kept of each object."""


_KUEUE: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
HELD: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Pods that have a machine and are not over."""

SOURCES: Final[Mapping[RelatedKind, Source]] = {
    RelatedKind.EVENTS: Source(plural="events"),
    RelatedKind.NODES: Source(plural="nodes", is_everywhere=True),
    RelatedKind.BOUND: Source(plural="pods", is_everywhere=True, fields=HELD, reduce=strip_scheduled_pod),
    RelatedKind.CLAIMS: Source(plural="persistentvolumeclaims"),
    RelatedKind.QUOTAS: Source(plural="resourcequotas"),
    RelatedKind.WORKLOADS: Source(versions=_KUEUE, plural="workloads", is_everywhere=True),
    RelatedKind.LOCAL_QUEUES: Source(versions=_KUEUE, plural="localqueues", is_everywhere=True),
    RelatedKind.CLUSTER_QUEUES: Source(versions=_KUEUE, plural="clusterqueues", is_everywhere=True),
    RelatedKind.OPERATOR: Source(plural="pods", is_everywhere=True),
    RelatedKind.QUEUE_CONTROLLER: Source(plural="pods", is_everywhere=True),
}


def objects(api: Api, kind: RelatedKind, namespace: str | None, selector: str = "") -> list[Object]:
    """The objects of a kind; none where the cluster does not serve it. Raises what else it is refused with.

    Args:
        api: the API server.
        kind: what to read.
        namespace: of which; ``None`` for all of them.
        selector: of labels.
    """
    source = SOURCES[kind]
    query = {"labelSelector": selector} if selector else {}
    query |= {"fieldSelector": source.fields} if source.fields else {}
    for version in source.versions:
        path = collection(version, source.plural, namespace)
        with contextlib.suppress(NotServed):
            return api.items(path, reduce=source.reduce, **query)[0]
    return []


def list_if_single_page(api: Api, kind: RelatedKind) -> list[Object] | None:
    """Those of all namespaces where one answer holds them all; ``None`` where there are more: for who is in a hurry."""
    source = SOURCES[kind]
    path = collection(source.versions[0], source.plural, None)
    page = api.get(path, fieldSelector=source.fields, limit=str(PAGE))
    if (page.get("metadata") or {}).get("continue"):
        return None
    return [kept for item in page.get("items") or () if (kept := source.reduce(item)) is not None]
