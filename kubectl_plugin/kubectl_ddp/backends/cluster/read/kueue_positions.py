"""Queue positions of waiting jobs from Kueue: one request per queue, and none if no job waits."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.backends.cluster.http.resources import collection
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.kueue_queue import Place, estimate_positions, positions_from_api, queues_of
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.concurrency import each

VISIBILITY: Final = ("visibility.kueue.x-k8s.io/v1beta2", "visibility.kueue.x-k8s.io/v1beta1")
WORKLOADS: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")


def queue_positions(api: Api, jobs: Iterable[Object]) -> dict[str, int]:
    """Return uid of a root object → its position, from 1. Jobs with an unknown position are left out."""
    found: dict[str, int] = {}
    for answer in each(lambda place: _of(api, place), queues_of(jobs)):
        found |= answer
    return found


def _of(api: Api, place: Place) -> dict[str, int]:
    namespace, queue = place
    for version in VISIBILITY:
        try:
            return positions_from_api(
                api.get(f"{collection(version, 'localqueues', namespace)}/{queue}/pendingworkloads")
            )
        except NotServed:
            continue
        except DdpError:  # forbidden or unavailable; the Workloads may still be readable
            break
    for version in WORKLOADS:
        try:
            return estimate_positions(api.items(collection(version, "workloads", namespace))[0], queue)
        except NotServed:
            continue
        except DdpError:
            break
    return {}
