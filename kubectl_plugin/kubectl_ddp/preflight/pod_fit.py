"""Number of pods that fit on a set of machines at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.preflight.nodes import Machine, ScheduledPod, used
from kubectl_ddp.preflight.pod_requirements import PodRequirements
from kubectl_ddp.preflight.quantities import Amounts, subtract
from kubectl_ddp.preflight.scheduler_filters import against

NOTHING: Final[Amounts] = {}
Counts = Mapping[str, int]
"""Machine → number of pods that fit on it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Cluster into which a job's workers and its store are placed."""

    worker: PodRequirements
    store: PodRequirements | None
    machines: Sequence[Machine]

    def eligible(self, pod: PodRequirements) -> list[Machine]:
        """Return the machines on which such a pod can run if they are empty."""
        return [machine for machine in self.machines if not against(pod, machine)]

    def empty(self) -> int:
        """Return the number of workers that fit if nothing else runs."""
        return self._max_workers(self.machines, lambda _: NOTHING)

    def free_worker_slots(self, occupants: Iterable[ScheduledPod]) -> int:
        """Return the number of workers that fit beside the running pods, on machines that accept pods now."""
        taken_of = used(occupants)
        return self._max_workers(
            [machine for machine in self.machines if not machine.closed], lambda name: taken_of.get(name, NOTHING)
        )

    def _max_workers(self, machines: Sequence[Machine], taken_of: Callable[[str], Amounts]) -> int:
        """Return the number of workers that fit with one store, which is placed where it displaces the fewest
        workers.
        """
        free = {machine.name: subtract(machine.whole, taken_of(machine.name)) for machine in machines}
        can = [machine for machine in machines if not against(self.worker, machine)]
        counts = {machine.name: copies(self.worker.wants, free[machine.name]) for machine in can}
        alone = count_schedulable_pods(self.worker, can, counts)
        if self.store is None:
            return alone
        best = 0
        for machine in machines:
            if against(self.store, machine) or not copies(self.store.wants, free[machine.name]):
                continue
            left = copies(self.worker.wants, subtract(free[machine.name], self.store.wants))
            if left >= counts.get(machine.name, 0):
                return alone
            best = max(best, count_schedulable_pods(self.worker, can, {**counts, machine.name: left}))
        return best


def copies(wants: Amounts, free: Amounts) -> int:
    """Return how many times ``wants`` fits into ``free``."""
    return max(0, min((free.get(name, 0) // amount for name, amount in wants.items() if amount), default=0))


def count_schedulable_pods(pod: PodRequirements, machines: Sequence[Machine], counts: Counts) -> int:
    """Return the number of pods that can be placed under their affinity and spread constraints."""
    if pod.together:
        key, *more = pod.together
        domains = _domains(key, machines)
        rest = PodRequirements(**{**_fields(pod), "together": tuple(more)})  # type: ignore[arg-type]  # its own fields
        return max(
            (
                count_schedulable_pods(rest, machines, {name: counts[name] for name in names})
                for names in domains.values()
            ),
            default=0,
        )
    return min(
        (_spread(_domains(key, machines), counts) for key in pod.spread),
        default=sum(counts.values()),
    )


def _fields(pod: PodRequirements) -> dict[str, object]:
    return {name: getattr(pod, name) for name in PodRequirements.__dataclass_fields__}


def _domains(key: str, machines: Iterable[Machine]) -> dict[str, list[str]]:
    """Return value of a label → names of the machines that have it."""
    found: dict[str, list[str]] = {}
    for machine in machines:
        if key in machine.labels:
            found.setdefault(machine.labels[key], []).append(machine.name)
    return found


def _spread(domains: Mapping[str, Sequence[str]], counts: Counts) -> int:
    """Return the number of pods that can be spread with a skew of at most one."""
    rooms = [sum(counts.get(name, 0) for name in names) for names in domains.values()]
    return sum(min(room, min(rooms) + 1) for room in rooms)
