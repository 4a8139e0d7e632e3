"""Asks a cluster what it is and what we may do there, all at once; what may not be seen is ``None``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, TypeVar

from kubectl_ddp import roots
from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.aside import Aside
from kubectl_ddp.cluster.parallel import each as of_each
from kubectl_ddp.cluster.refusals import NotServed
from kubectl_ddp.cluster.resources import Discovery
from kubectl_ddp.cluster.slim import without_managers
from kubectl_ddp.doctor.cluster import ClusterFacts
from kubectl_ddp.doctor.rights import Right, rights
from kubectl_ddp.errors import DdpError, Forbidden, NotFound
from kubectl_ddp.operators import KUEUE, OPERATORS

T = TypeVar("T")

_AUTHORIZATION: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_AUTHENTICATION: Final = "/apis/authentication.k8s.io/v1/selfsubjectreviews"


def examine(api: Api, namespace: str) -> ClusterFacts:
    """Look at the cluster. Raises what its API server's version cannot be read for: then there is nothing to see."""
    version = str(api.get("/version").get("gitVersion", ""))
    groups = {
        str(each["name"]): str(each["preferredVersion"]["version"]) for each in api.get("/apis").get("groups") or ()
    }
    served = _engines(Discovery(api))
    asked = rights(served, has_monitors="monitoring.coreos.com" in groups, has_queues="kueue.x-k8s.io" in groups)
    selectors = {who.selector for who in (*(OPERATORS[engine] for engine in served), KUEUE) if who.selector}
    with ExitStack() as stack:

        def aside(read: Callable[[], T]) -> Aside[T]:
            return stack.enter_context(Aside(read))

        pods = {each: aside(_softly(partial(_items, api, "/api/v1/pods", each))) for each in selectors}
        space = aside(partial(_namespace, api, namespace))
        nodes = aside(_softly(partial(_items, api, "/api/v1/nodes")))
        daemons = aside(_softly(partial(_items, api, "/apis/apps/v1/daemonsets")))
        user = aside(_softly(partial(_user, api)))
        allowed = of_each(lambda right: _may(api, right, namespace), asked)
    has_namespace, labels = space.result()
    machines = nodes.result()
    return ClusterFacts(
        where=api.connection.where,
        server=api.connection.server,
        namespace=namespace,
        version=version,
        user=user.result() or "",
        groups=groups,
        engines=served,
        labels=labels,
        has_namespace=has_namespace,
        operators={selector: answer.result() for selector, answer in pods.items()},
        daemons=_names(daemons.result()),
        nodes=_ready(machines),
        gpus=_gpus(machines),
        missing=[right for right, may in zip(asked, allowed, strict=True) if not may],
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


def _items(api: Api, path: str, selector: str = "") -> list[Object]:
    query = {"labelSelector": selector} if selector else {}
    return api.items(path, reduce=without_managers, **query)[0]


def _namespace(api: Api, namespace: str) -> tuple[bool, dict[str, str] | None]:
    try:
        return True, dict(api.get(f"/api/v1/namespaces/{namespace}")["metadata"].get("labels") or {})
    except NotFound:
        return False, None
    except DdpError:
        return True, None


def _may(api: Api, right: Right, namespace: str) -> bool:
    """Whether we may, as the API server itself decides; a server that does not say is taken for a yes."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "namespace": "" if right.is_everywhere else namespace,
    }
    body = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": attributes},
    }
    try:
        return bool(api.create(_AUTHORIZATION, body)["status"].get("allowed"))
    except Forbidden:
        return False
    except DdpError:
        return True


def _user(api: Api) -> str:
    try:
        review = api.create(_AUTHENTICATION, {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"})
    except NotServed:
        return ""
    return str(review["status"]["userInfo"].get("username", ""))


def _names(items: Sequence[Object] | None) -> list[str] | None:
    return None if items is None else [str(each["metadata"]["name"]) for each in items]


def _ready(nodes: Sequence[Object] | None) -> int | None:
    return None if nodes is None else sum(_is_ready(node) for node in nodes)


def _is_ready(node: Object) -> bool:
    conditions: Sequence[dict[str, Any]] = (node.get("status") or {}).get("conditions") or ()
    return any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)


def _gpus(nodes: Sequence[Object] | None) -> int | None:
    if nodes is None:
        return None
    counts = [str((node["status"].get("allocatable") or {}).get("nvidia.com/gpu", "0")) for node in nodes]
    return sum(int(count) for count in counts if count.isdecimal())
