"""Concurrent reading of a cluster's properties and the user's rights. Unreadable parts are ``None``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TypeVar

from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.backends.cluster.read import access_review
from kubectl_ddp.backends.cluster.read.cluster_features import detect_features
from kubectl_ddp.backends.cluster.read.pod_transform import without_managers
from kubectl_ddp.backends.cluster.read.resource_table import objects
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import DdpError, NotFound
from kubectl_ddp.kube.kueue_queue import KUEUE
from kubectl_ddp.kube.objects import Object, RelatedKind, holds
from kubectl_ddp.preflight.controller import CONTROLLER_SELECTOR
from kubectl_ddp.preflight.doctor import ClusterFacts
from kubectl_ddp.preflight.resources import parse_nodes
from kubectl_ddp.rbac.rights import KINDS, permissions_to_check
from kubectl_ddp.render.pod import GPU
from kubectl_ddp.util.concurrency import Future

T = TypeVar("T")


def inspect_cluster(api: Api, namespace: str) -> ClusterFacts:
    """Return the properties of the cluster. Raises the error of reading the API server's version."""
    version = str(api.get("/version").get("gitVersion", ""))
    groups = {
        str(each["name"]): str(each["preferredVersion"]["version"]) for each in api.get("/apis").get("groups") or ()
    }
    discovery = Discovery(api)
    engines = _served_engine_names(discovery)
    served = discovery.filter_served(KINDS)
    operators = (*(ENGINES[name].operator for name in engines), KUEUE)
    selectors = {CONTROLLER_SELECTOR, *(who.selector for who in operators if who.selector)}
    with ExitStack() as stack:

        def submit(read: Callable[[], T]) -> Future[T]:
            return stack.enter_context(Future(read))

        pods = {
            each: submit(_none_on_error(partial(objects, api, RelatedKind.OPERATOR, None, each))) for each in selectors
        }
        space = submit(partial(_namespace, api, namespace))
        nodes = submit(_none_on_error(partial(objects, api, RelatedKind.NODES, None)))
        daemons = submit(_none_on_error(partial(_daemonset_names, api)))
        user = submit(partial(access_review.user, api))
        queues = submit(_none_on_error(partial(objects, api, RelatedKind.LOCAL_QUEUES, namespace)))
        features = submit(partial(detect_features, api, discovery, namespace, engines))
        missing = submit(_none_on_error(partial(access_review.missing, api, namespace, permissions_to_check(served))))
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
        local_queues=_names(queues.result()),
        features=features.result(),
        served=served,
        labels=labels,
        has_namespace=has_namespace,
        operators={selector: answer.result() for selector, answer in pods.items()},
        daemons=daemons.result(),
        nodes=_ready(machines),
        gpus=_gpus(machines),
        missing=missing.result(),
    )


def _served_engine_names(discovery: Discovery) -> list[str]:
    """Return the engines whose kinds are served. The API group is not enough, as kubeflow.org also has other kinds."""
    return [
        name
        for name, engine in ENGINES.items()
        if discovery.resource_for_kind(engine.api_version, engine.kind) is not None
    ]


def _none_on_error(read: Callable[[], T]) -> Callable[[], T | None]:
    """Wrap a function so that it returns ``None`` instead of raising DdpError."""

    def read_or_none() -> T | None:
        try:
            return read()
        except DdpError:
            return None

    return read_or_none


def _names(items: Sequence[Object] | None) -> list[str] | None:
    return None if items is None else [str(each["metadata"]["name"]) for each in items]


def _daemonset_names(api: Api) -> list[str]:
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
    return None if nodes is None else sum(machine.allocatable.get(GPU, 0) for machine in parse_nodes(nodes)) // 1000
