"""What stands around a job, asked of the API server: several collections at once, each refusal told and none raised."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.refusals import NotServed
from kubectl_ddp.cluster.resources import collection
from kubectl_ddp.cluster.slim import slim_pod, without_managers
from kubectl_ddp.errors import DdpError
from kubectl_ddp.operators import KUEUE, OPERATORS
from kubectl_ddp.surroundings import Around, Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class _Where:
    """Where a kind is read."""

    versions: tuple[str, ...] = ("v1",)
    """The first of these that the cluster serves."""
    plural: str
    is_everywhere: bool = False
    """Of all namespaces, or of none; else of the job's own."""
    fields: str = ""
    reduce: Callable[[Object], Object] = without_managers
    """What is kept of each object."""


_KUEUE: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")

_WHERE: Final[Mapping[Around, _Where]] = {
    Around.EVENTS: _Where(plural="events"),
    Around.NODES: _Where(plural="nodes", is_everywhere=True),
    Around.BOUND: _Where(
        plural="pods",
        is_everywhere=True,
        fields="spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
        reduce=slim_pod,
    ),
    Around.CLAIMS: _Where(plural="persistentvolumeclaims"),
    Around.QUOTAS: _Where(plural="resourcequotas"),
    Around.WORKLOADS: _Where(versions=_KUEUE, plural="workloads", is_everywhere=True),
    Around.LOCAL_QUEUES: _Where(versions=_KUEUE, plural="localqueues", is_everywhere=True),
    Around.CLUSTER_QUEUES: _Where(versions=_KUEUE, plural="clusterqueues", is_everywhere=True),
    Around.OPERATOR: _Where(plural="pods", is_everywhere=True),
    Around.QUEUE_CONTROLLER: _Where(plural="pods", is_everywhere=True),
}

_OF_NAMESPACE: Final = frozenset({Around.WORKLOADS, Around.LOCAL_QUEUES})
"""Kinds of which the namespace's own are still worth something, where those of all may not be read."""


def read(api: Api, namespace: str, engine: str, kinds: Collection[Around]) -> Surroundings:
    """The objects of these kinds, and a sentence for each that may not be read.

    Args:
        api: the API server.
        namespace: that of the job.
        engine: that of the job; decides which operator is looked for.
        kinds: what to read.
    """
    selectors = {Around.OPERATOR: OPERATORS[engine].selector, Around.QUEUE_CONTROLLER: KUEUE.selector}
    asked = [kind for kind in kinds if selectors.get(kind) != ""]
    readers = [_Reader(api, namespace, kind, selectors.get(kind, "")) for kind in asked]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join()
    return Surroundings(
        found={reader.kind: reader.found for reader in readers if reader.found is not None},
        unseen=tuple(reader.refusal for reader in readers if reader.refusal),
    )


class _Reader(threading.Thread):
    """Reads one kind."""

    def __init__(self, api: Api, namespace: str, kind: Around, selector: str) -> None:
        super().__init__(name=f"read {kind}", daemon=True)
        self.kind = kind
        self.found: tuple[Object, ...] | None = None
        self.refusal = ""
        self._api = api
        self._namespace = namespace
        self._selector = selector

    def run(self) -> None:
        where = _WHERE[self.kind]
        try:
            self.found = self._read(where, None if where.is_everywhere else self._namespace)
        except DdpError as error:
            self.refusal = f"{error.message.rstrip('.')}."
            if self.kind in _OF_NAMESPACE:
                self._read_less(where)

    def _read_less(self, where: _Where) -> None:
        try:
            self.found = self._read(where, self._namespace)
        except DdpError:  # the first refusal says it all
            return

    def _read(self, where: _Where, namespace: str | None) -> tuple[Object, ...]:
        """The items of the first of the versions that the cluster serves; none when it serves none."""
        query = {"labelSelector": self._selector} if self._selector else {}
        query |= {"fieldSelector": where.fields} if where.fields else {}
        for version in where.versions:
            path = collection(version, where.plural, namespace)
            with contextlib.suppress(NotServed):
                return tuple(self._api.items(path, reduce=where.reduce, **query)[0])
        return ()
