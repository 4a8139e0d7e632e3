"""Table of the kinds that affect a job: path of each kind, and the part of its objects that is kept.

Used for ``why`` and ``bundle`` (``related_reader``), ``preflight`` (``facts``), ``capacity`` (``capacity_reader``) and
``doctor`` (``cluster_info``). They differ in the kinds they read and in how they handle denied requests.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.backends.cluster.read.pod_transform import strip_scheduled_pod, without_managers
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.kube.related_objects import RelatedKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Location of a kind."""

    versions: tuple[str, ...] = ("v1",)
    """API versions. The first one that the cluster serves is used."""
    plural: str
    is_everywhere: bool = False
    """True if objects of all namespaces are read, or cluster-scoped ones."""
    fields: str = ""
    """Field selector."""
    reduce: Callable[[Object], Object | None] = without_managers
    """Function that returns the part of an object to keep."""


_KUEUE: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")
HELD: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of unfinished pods that are bound to a machine."""

SOURCES: Final[Mapping[RelatedKind, Source]] = {
    RelatedKind.EVENTS: Source(plural="events"),
    RelatedKind.NODES: Source(plural="nodes", is_everywhere=True),
    RelatedKind.BOUND: Source(plural="pods", is_everywhere=True, fields=HELD, reduce=strip_scheduled_pod),
    RelatedKind.CLAIMS: Source(plural="persistentvolumeclaims"),
    RelatedKind.QUOTAS: Source(plural="resourcequotas"),
    RelatedKind.POLICIES: Source(versions=("networking.k8s.io/v1",), plural="networkpolicies"),
    RelatedKind.WORKLOADS: Source(versions=_KUEUE, plural="workloads", is_everywhere=True),
    RelatedKind.LOCAL_QUEUES: Source(versions=_KUEUE, plural="localqueues"),
    RelatedKind.CLUSTER_QUEUES: Source(versions=_KUEUE, plural="clusterqueues", is_everywhere=True),
    RelatedKind.OPERATOR: Source(plural="pods", is_everywhere=True),
    RelatedKind.QUEUE_CONTROLLER: Source(plural="pods", is_everywhere=True),
}


def objects(api: Api, kind: RelatedKind, namespace: str | None, selector: str = "") -> list[Object]:
    """Return the objects of a kind; empty if the cluster does not serve it. Raises the other errors of the request.

    Args:
        api: API server.
        kind: Kind to read.
        namespace: Namespace to read; ``None`` for all namespaces.
        selector: Label selector.
    """
    source = SOURCES[kind]
    query = {"labelSelector": selector} if selector else {}
    query |= {"fieldSelector": source.fields} if source.fields else {}
    for version in source.versions:
        path = collection(version, source.plural, namespace)
        with contextlib.suppress(NotServed):
            return api.items(path, reduce=source.reduce, **query)[0]
    return []
