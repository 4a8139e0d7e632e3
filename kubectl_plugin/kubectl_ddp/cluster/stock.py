"""Reads what decides what is free in a cluster, all at the same time; what may not be read is a sentence."""

from __future__ import annotations

from functools import partial

from kubectl_ddp.capacity.model import Stock
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.facts import softly
from kubectl_ddp.cluster.sources import objects
from kubectl_ddp.parallel import together
from kubectl_ddp.surroundings import Around


def read(api: Api, namespace: str) -> Stock:
    """Machines, pods of all namespaces, and the namespace's queues. Raises what is no refusal."""
    asked = {
        "nodes": partial(objects, api, Around.NODES, None),
        "pods": partial(objects, api, Around.BOUND, None),
        "local_queues": partial(objects, api, Around.LOCAL_QUEUES, namespace),
        "cluster_queues": partial(objects, api, Around.CLUSTER_QUEUES, None),
    }
    answers = together(*(softly(question) for question in asked.values()))
    return Stock(namespace=namespace, **dict(zip(asked, answers, strict=True)))
