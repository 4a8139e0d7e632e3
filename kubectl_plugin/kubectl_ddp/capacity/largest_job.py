"""Which jobs fit on the machines now, by kind of GPU and by GPUs per node."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kubectl_ddp.capacity.model import GPU, Gang, Queue, type_of
from kubectl_ddp.capacity.queues import UNBOUNDED, nodes_within_quota
from kubectl_ddp.checks.nodes import Machine, ScheduledPod
from kubectl_ddp.checks.pod_fit import Place
from kubectl_ddp.checks.pod_requirements import PodRequirements

Shape = Callable[[str, int], tuple[PodRequirements, PodRequirements]]
"""(kind of GPU, GPUs per node) → what a worker of such a job asks for, and its store."""


def largest_jobs(
    machines: Sequence[Machine], occupants: Sequence[ScheduledPod], shape: Shape, queue: Queue | None = None
) -> Iterator[Gang]:
    """The most nodes that fit, for every kind of GPU and every number of them per node; then without GPUs.

    Args:
        machines: of the place.
        occupants: what runs there.
        shape: what a job asks for.
        queue: the one whose quota counts, too.
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
    """The one with most GPUs, of those the one with fewest nodes; without GPUs where none fits; ``None`` if none."""
    fit = [gang for gang in found if gang.nodes]
    return max(fit, key=lambda gang: (gang.gpus > 0, gang.total, gang.gpus), default=None)
