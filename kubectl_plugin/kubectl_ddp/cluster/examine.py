"""Asks a cluster what it is and what we may do there, all at once; what may not be seen is ``None``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from kubectl_ddp import roots
from kubectl_ddp.aside import Aside
from kubectl_ddp.backend import Object
from kubectl_ddp.capacity.model import GPU
from kubectl_ddp.checks.machines import machines_of
from kubectl_ddp.cluster import granted
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.resources import Discovery, collection
from kubectl_ddp.cluster.slim import without_managers
from kubectl_ddp.cluster.sources import objects
from kubectl_ddp.conditions import holds
from kubectl_ddp.doctor.cluster import ClusterFacts
from kubectl_ddp.errors import DdpError, NotFound
from kubectl_ddp.operators import KUEUE, OPERATORS
from kubectl_ddp.rights.table import KINDS, to_look_at
from kubectl_ddp.surroundings import Around

T = TypeVar("T")


def examine(api: Api, namespace: str) -> ClusterFacts:
    """Look at the cluster. Raises what its API server's version cannot be read for: then there is nothing to see."""
    version = str(api.get("/version").get("gitVersion", ""))
    groups = {
        str(each["name"]): str(each["preferredVersion"]["version"]) for each in api.get("/apis").get("groups") or ()
    }
    discovery = Discovery(api)
    engines = _engines(discovery)
    served = discovery.those_served(KINDS)
    selectors = {who.selector for who in (*(OPERATORS[engine] for engine in engines), KUEUE) if who.selector}
    with ExitStack() as stack:

        def aside(read: Callable[[], T]) -> Aside[T]:
            return stack.enter_context(Aside(read))

        pods = {each: aside(_softly(partial(objects, api, Around.OPERATOR, None, each))) for each in selectors}
        space = aside(partial(_namespace, api, namespace))
        nodes = aside(_softly(partial(objects, api, Around.NODES, None)))
        daemons = aside(_softly(partial(_daemons, api)))
        user = aside(partial(granted.user, api))
        missing = aside(_softly(partial(granted.missing, api, namespace, to_look_at(served))))
    has_namespace, labels = space.result()
    machines = nodes.result()
    return ClusterFacts(
        where=api.connection.where,
        server=api.connection.server,
        namespace=namespace,
        version=version,
        user=user.result(),
        groups=groups,
        engines=engines,
        served=served,
        labels=labels,
        has_namespace=has_namespace,
        operators={selector: answer.result() for selector, answer in pods.items()},
        daemons=daemons.result(),
        nodes=_ready(machines),
        gpus=_gpus(machines),
        missing=missing.result(),
    )


def _engines(discovery: Discovery) -> list[str]:
    """Engines whose kinds are served; groups alone would not do, for kubeflow.org has notebooks and MPI jobs, too."""
    return [
        engine for engine, root in roots.ROOTS.items() if discovery.plural_of(root.api_version, root.kind) is not None
    ]


def _softly(read: Callable[[], T]) -> Callable[[], T | None]:
    """What is read; ``None`` where it may not be."""

    def softly() -> T | None:
        try:
            return read()
        except DdpError:
            return None

    return softly


def _daemons(api: Api) -> list[str]:
    found, _ = api.items(collection("apps/v1", "daemonsets", None), reduce=without_managers)
    return [str(each["metadata"]["name"]) for each in found]


def _namespace(api: Api, namespace: str) -> tuple[bool, dict[str, str] | None]:
    try:
        return True, dict(api.get(f"/api/v1/namespaces/{namespace}")["metadata"].get("labels") or {})
    except NotFound:
        return False, None
    except DdpError:
        return True, None


def _ready(nodes: Sequence[Object] | None) -> int | None:
    return None if nodes is None else sum(holds(node, "Ready") for node in nodes)


def _gpus(nodes: Sequence[Object] | None) -> int | None:
    return None if nodes is None else sum(machine.whole.get(GPU, 0) for machine in machines_of(nodes)) // 1000
