"""Reads what decides what is free in a cluster, all at the same time; what may not be read is a sentence."""

from __future__ import annotations

from kubectl_ddp.capacity.model import Stock
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.facts import ALIVE, KUEUE, Question, of_a_machine, softly
from kubectl_ddp.cluster.resources import Discovery, collection
from kubectl_ddp.parallel import together


def read(api: Api, discovery: Discovery, namespace: str) -> Stock:
    """Machines, pods of all namespaces, and the namespace's queues. Raises what is no refusal."""
    pods = collection("v1", "pods", None)
    asked: dict[str, Question] = {
        "nodes": softly(lambda: api.items("/api/v1/nodes")[0]),
        "pods": softly(lambda: api.items(pods, reduce=of_a_machine, fieldSelector=ALIVE)[0]),
    }
    if versions := discovery.serves(KUEUE):
        group = f"{KUEUE}/{versions[0]}"
        asked["local_queues"] = softly(lambda: api.items(collection(group, "localqueues", namespace))[0])
        asked["cluster_queues"] = softly(lambda: api.items(collection(group, "clusterqueues", None))[0])
    return Stock(namespace=namespace, **dict(zip(asked, together(*asked.values()), strict=True)))
