"""Asks Kueue for the places in line of jobs that wait: one request per queue, and none where no job waits in one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.api_errors import NotServed
from kubectl_ddp.cluster.resources import collection
from kubectl_ddp.errors import DdpError
from kubectl_ddp.parallel import each
from kubectl_ddp.queued import Place, estimate_positions, positions_from_api, queues_of

VISIBILITY: Final = ("visibility.kueue.x-k8s.io/v1beta2", "visibility.kueue.x-k8s.io/v1beta1")
WORKLOADS: Final = ("kueue.x-k8s.io/v1beta2", "kueue.x-k8s.io/v1beta1")


def queue_positions(api: Api, jobs: Iterable[Object]) -> dict[str, int]:
    """Uid of a root → its place in line, from 1; without those of which nobody may know or tells."""
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
        except DdpError:  # not allowed, or its server is away: the objects themselves may be read all the same
            break
    for version in WORKLOADS:
        try:
            return estimate_positions(api.items(collection(version, "workloads", namespace))[0], queue)
        except NotServed:
            continue
        except DdpError:
            break
    return {}
