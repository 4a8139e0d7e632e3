"""Concurrent reading of the objects that determine free capacity. Forbidden kinds are returned as sentences."""

from __future__ import annotations

from functools import partial

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.read.preflight_reader import unknown_if_forbidden
from kubectl_ddp.backends.cluster.read.resource_table import objects
from kubectl_ddp.capacity.model import Inventory
from kubectl_ddp.kube.related_objects import RelatedKind
from kubectl_ddp.util.concurrency import run_concurrently


def read(api: Api, namespace: str) -> Inventory:
    """Return machines, pods of all namespaces, and the namespace's queues. Raises errors other than denied access."""
    asked = {
        "nodes": partial(objects, api, RelatedKind.NODES, None),
        "pods": partial(objects, api, RelatedKind.BOUND, None),
        "local_queues": partial(objects, api, RelatedKind.LOCAL_QUEUES, namespace),
        "cluster_queues": partial(objects, api, RelatedKind.CLUSTER_QUEUES, None),
    }
    answers = run_concurrently(*(unknown_if_forbidden(question) for question in asked.values()))
    return Inventory(namespace=namespace, **dict(zip(asked, answers, strict=True)))
