"""Rights that the controller needs, from which the chart's roles are tested."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from ddp_controller.disruption_budget import OWN_ROLE
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.backends.cluster.read.access_review import missing
from kubectl_ddp.engines.registry import ENGINES
from kubectl_ddp.errors import Forbidden
from kubectl_ddp.rbac.model import EVERYWHERE, OWN, Right, summarize_permissions

_OF_JOBS: Final = (
    *(
        Right.of(verb, kind, EVERYWHERE)
        for kind in ("pods", *(engine.collection for engine in ENGINES.values()))
        for verb in ("list", "watch")
    ),
    *(Right.of("patch", engine.collection, EVERYWHERE) for engine in ENGINES.values() if engine.is_scalable),
    *(
        Right.of(verb, "poddisruptionbudgets.policy", EVERYWHERE)
        for verb in ("get", "list", "watch", "create", "patch", "delete")
    ),
    Right.of("create", "pods/eviction", EVERYWHERE),
    Right.of("create", "events", EVERYWHERE),
)
"""Rights in the namespaces of the managed jobs."""
_OF_METRICS: Final = Right.of("get", "pods/proxy", EVERYWHERE)
"""Right to read the metrics of pods. It reaches any port of a pod, so it is never granted for the whole cluster."""
_OF_THE_CLUSTER: Final = (
    *(Right.of(verb, "nodes", EVERYWHERE) for verb in ("list", "watch")),
    Right.of("get", "clusterroles.rbac.authorization.k8s.io", EVERYWHERE, (OWN_ROLE,)),
    *(
        Right.of(verb, f"{kind}.kueue.x-k8s.io", EVERYWHERE)
        for kind in ("workloads", "localqueues", "clusterqueues")
        for verb in ("list", "watch")
    ),
    *(Right.of(verb, "leases.coordination.k8s.io", OWN) for verb in ("get", "create", "patch")),
)
"""Rights that do not depend on the namespaces. A queue is shared, so its Workloads of all namespaces are read."""


def controller_rights(namespaces: Collection[str] = ()) -> tuple[Right, ...]:
    """Return all rights. ``OWN`` is the namespace of the Lease.

    Args:
        namespaces: Namespaces of the managed jobs; empty for all. A controller of all reads metrics where it may.
    """
    of_jobs = (*_OF_JOBS, _OF_METRICS) if namespaces else _OF_JOBS
    places = namespaces or (EVERYWHERE,)
    return (*_OF_THE_CLUSTER, *(replace(right, where=place) for place in places for right in of_jobs))


def check_rights(api: Api, namespace: str, namespaces: Collection[str] = ()) -> None:
    """Raise Forbidden with one sentence if a right is missing. Kinds that the cluster does not serve need none.

    Args:
        api: API server.
        namespace: Namespace of the Lease.
        namespaces: Namespaces of the managed jobs; empty for all.
    """
    rights = controller_rights(namespaces)
    served = Discovery(api).filter_served({right.kind for right in rights})
    lacking = missing(api, namespace, [right for right in rights if right.kind in served])
    if lacking:
        raise Forbidden(
            f"The controller may not {summarize_permissions(lacking)}.",
            hint="Grant this to its service account; the chart ddp-platform does with controller.enabled=true.",
        )
