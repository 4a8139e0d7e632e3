"""Table of the kinds that affect a job: path of each kind, and the part of its objects that is kept.

``why`` and ``bundle`` read several kinds by :func:`related_objects`, which returns denied requests as sentences.
``preflight``, ``capacity`` and ``doctor`` read single kinds by :func:`objects`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.backends.cluster.read.jobs import strip_scheduled_pod, without_managers
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.kueue_queue import KUEUE
from kubectl_ddp.kube.objects import Object, RelatedKind, RelatedObjects
from kubectl_ddp.util.concurrency import map_in_threads


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
BOUND_SELECTOR: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of unfinished pods that are bound to a machine."""

SOURCES: Final[Mapping[RelatedKind, Source]] = {
    RelatedKind.EVENTS: Source(plural="events"),
    RelatedKind.NODES: Source(plural="nodes", is_everywhere=True),
    RelatedKind.BOUND: Source(plural="pods", is_everywhere=True, fields=BOUND_SELECTOR, reduce=strip_scheduled_pod),
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


Answer = tuple[tuple[Object, ...] | None, str]
"""Objects, or ``None`` if they may not be read; and the reason, or an empty text."""


def related_objects(api: Api, namespace: str, engine: str, kinds: Collection[RelatedKind]) -> RelatedObjects:
    """Return the objects of these kinds, and a sentence for each kind that may not be read.

    Args:
        api: API server.
        namespace: Namespace of the job.
        engine: Engine of the job, which determines the operator to look for.
        kinds: Kinds to read.
    """
    selectors = {RelatedKind.OPERATOR: ENGINES[engine].operator.selector, RelatedKind.QUEUE_CONTROLLER: KUEUE.selector}
    selected = [kind for kind in kinds if selectors.get(kind) != ""]
    answers = dict(
        zip(
            selected,
            map_in_threads(lambda kind: _read(api, namespace, kind, selectors.get(kind, "")), selected),
            strict=True,
        )
    )
    return RelatedObjects(
        found={kind: found for kind, (found, _) in answers.items() if found is not None},
        unseen=tuple(why for _, why in answers.values() if why),
    )


def _read(api: Api, namespace: str, kind: RelatedKind, selector: str) -> Answer:
    try:
        return tuple(objects(api, kind, None if SOURCES[kind].is_everywhere else namespace, selector)), ""
    except DdpError as error:
        why = f"{error.message.rstrip('.')}."
        # The job's own Workload is in its namespace.
        return (_of_namespace(api, namespace, kind) if kind is RelatedKind.WORKLOADS else None), why


def _of_namespace(api: Api, namespace: str, kind: RelatedKind) -> tuple[Object, ...] | None:
    try:
        return tuple(objects(api, kind, namespace))
    except DdpError:  # the first denial is enough
        return None
