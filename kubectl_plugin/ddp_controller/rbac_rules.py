"""Rights that the controller needs, from which the chart's roles are tested."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Final

from ddp_controller.pod_move import OWN_ROLE
from ddp_trainer.common.constants import GROUP
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.backends.cluster.read.cluster_info import missing_rights
from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import Forbidden
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.rbac.rights import COMPANIONS, EVERYWHERE, JOBS, OWN, Right, summarize_permissions

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
_OF_DDPJOBS: Final = (
    *(Right.of(verb, "pods", EVERYWHERE) for verb in ("get", "patch")),
    *(Right.of(verb, f"{job_kinds.PLURAL}.{GROUP}", EVERYWHERE) for verb in ("list", "watch", "delete")),
    Right.of("patch", f"{job_kinds.PLURAL}.{GROUP}/status", EVERYWHERE),
    Right.of("create", "secrets", EVERYWHERE),
    *(
        Right.of(verb, kind, EVERYWHERE)
        for kind in COMPANIONS
        for verb in (("get", "create", "patch") if kind == "configmaps" else ("get", "create"))
    ),
    *(Right.of(verb, kind, EVERYWHERE) for kind in JOBS for verb in ("get", "create", "patch")),
    Right.of("patch", "workloads.kueue.x-k8s.io", EVERYWHERE),
)
"""Further rights in these namespaces to make the objects of DDPJobs, and what TrainJobs lack."""
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


_OF_POLICIES: Final = (Right.of("get", "endpointslices.discovery.k8s.io", EVERYWHERE, ("kubernetes",)),)
"""Right to read the addresses of the API servers, which the NetworkPolicy of a job admits."""


def controller_rights(namespaces: Collection[str] = (), *, has_ddpjobs: bool = False) -> tuple[Right, ...]:
    """Return all rights. ``OWN`` is the namespace of the Lease.

    Args:
        namespaces: Namespaces of the managed jobs; empty for all. A controller of all reads metrics where it may.
        has_ddpjobs: True if the controller makes the objects of DDPJobs.
    """
    of_jobs = (*_OF_JOBS, *([_OF_METRICS] if namespaces else []), *(_OF_DDPJOBS if has_ddpjobs else ()))
    places = namespaces or (EVERYWHERE,)
    of_cluster = (*_OF_THE_CLUSTER, *(_OF_POLICIES if has_ddpjobs else ()))
    return (*of_cluster, *(replace(right, where=place) for place in places for right in of_jobs))


def check_rights(api: Api, namespace: str, namespaces: Collection[str] = (), *, has_ddpjobs: bool = False) -> None:
    """Raise Forbidden with one sentence if a right is missing. Kinds that the cluster does not serve need none.

    Args:
        api: API server.
        namespace: Namespace of the Lease.
        namespaces: Namespaces of the managed jobs; empty for all.
        has_ddpjobs: True if the controller makes the objects of DDPJobs.
    """
    rights = controller_rights(namespaces, has_ddpjobs=has_ddpjobs)
    served = Discovery(api).filter_served({right.kind for right in rights})
    lacking = missing_rights(api, namespace, [right for right in rights if right.kind in served])
    if lacking:
        raise Forbidden(
            f"The controller may not {summarize_permissions(lacking)}.",
            hint="Grant this to its service account; the chart ddp-platform does.",
        )
