"""Concurrent reading of objects related to a job. Denied requests are returned as sentences and not raised."""

from __future__ import annotations

from collections.abc import Collection

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.read.resource_table import SOURCES, objects
from kubectl_ddp.engines.registry import ENGINES
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.kueue_queue import KUEUE
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.kube.related_objects import RelatedKind, RelatedObjects
from kubectl_ddp.util.concurrency import each

Answer = tuple[tuple[Object, ...] | None, str]
"""Objects, or ``None`` if they may not be read; and the reason, or an empty text."""


def read(api: Api, namespace: str, engine: str, kinds: Collection[RelatedKind]) -> RelatedObjects:
    """Return the objects of these kinds, and a sentence for each kind that may not be read.

    Args:
        api: API server.
        namespace: Namespace of the job.
        engine: Engine of the job, which determines the operator to look for.
        kinds: Kinds to read.
    """
    selectors = {RelatedKind.OPERATOR: ENGINES[engine].operator.selector, RelatedKind.QUEUE_CONTROLLER: KUEUE.selector}
    asked = [kind for kind in kinds if selectors.get(kind) != ""]
    answers = dict(
        zip(asked, each(lambda kind: _read(api, namespace, kind, selectors.get(kind, "")), asked), strict=True)
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
