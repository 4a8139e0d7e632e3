"""Jobs that fit on the machines now, by kind of GPU and GPUs per node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kubectl_ddp.capacity.model import GPU, Gang, Queue, type_of
from kubectl_ddp.capacity.queues import UNBOUNDED, nodes_within_quota
from kubectl_ddp.preflight.nodes import Machine, ScheduledPod
from kubectl_ddp.preflight.pod_fit import Place
from kubectl_ddp.preflight.pod_requirements import PodRequirements

Shape = Callable[[str, int], tuple[PodRequirements, PodRequirements]]
"""(kind of GPU, GPUs per node) → requirements of a worker pod and of the store's pod."""


def largest_jobs(
    machines: Sequence[Machine], occupants: Sequence[ScheduledPod], shape: Shape, queue: Queue | None = None
) -> Iterator[Gang]:
    """Yield the largest job for every kind of GPU and number of GPUs per node, then the largest without GPUs.

    Args:
        machines: Machines of the place.
        occupants: Pods that run there.
        shape: Function that returns the requirements of a job's pods.
        queue: Queue whose quota limits the job (default: none).
    """
    kinds = dict.fromkeys(type_of(machine) for machine in machines if machine.whole.get(GPU))
    for kind in kinds:
        there = [machine for machine in machines if type_of(machine) == kind and machine.whole.get(GPU)]
        others = [machine for machine in machines if not machine.whole.get(GPU)]
        most = max(machine.whole[GPU] // 1000 for machine in there)
        for gpus in range(1, most + 1):
            yield Gang(kind, gpus, _nodes([*there, *others], occupants, shape(kind, gpus), queue))
    yield Gang("", 0, _nodes(machines, occupants, shape("", 0), queue))


def _nodes(
    machines: Sequence[Machine],
    occupants: Sequence[ScheduledPod],
    pods: tuple[PodRequirements, PodRequirements],
    queue: Queue | None,
) -> int:
    worker, store = pods
    quota = nodes_within_quota(queue, worker.wants) if queue is not None else UNBOUNDED
    return min(Place(worker, store, machines).free_worker_slots(occupants), quota)


def largest(found: Sequence[Gang]) -> Gang | None:
    """Return the job with the most GPUs, with few large nodes preferred; else the largest job without GPUs; else
    ``None``.
    """
    fit = [gang for gang in found if gang.nodes]
    return max(fit, key=lambda gang: (gang.gpus > 0, gang.total, gang.gpus), default=None)
