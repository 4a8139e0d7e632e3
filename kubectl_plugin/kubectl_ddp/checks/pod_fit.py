"""How many pods of a kind there is room for, all of them at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.checks.nodes import Machine, ScheduledPod, used
from kubectl_ddp.checks.pod_requirements import PodRequirements
from kubectl_ddp.checks.quantities import Amounts, subtract
from kubectl_ddp.checks.scheduler_filters import against

NOTHING: Final[Amounts] = {}
Counts = Mapping[str, int]
"""Machine → pods that it has room for."""


@dataclass(frozen=True, slots=True)
class Place:
    """A cluster in which the workers of a job and its store look for room."""

    worker: PodRequirements
    store: PodRequirements
    machines: Sequence[Machine]

    def eligible(self, pod: PodRequirements) -> list[Machine]:
        """Machines on which such a pod could be, if they were empty."""
        return [machine for machine in self.machines if not against(pod, machine)]

    def empty(self) -> int:
        """Workers that there is room for when nothing else runs."""
        return self._max_workers(self.machines, lambda _: NOTHING)

    def free_worker_slots(self, occupants: Iterable[ScheduledPod]) -> int:
        """Workers that there is room for beside these, on machines that take pods now."""
        taken_of = used(occupants)
        return self._max_workers(
            [machine for machine in self.machines if not machine.closed], lambda name: taken_of.get(name, NOTHING)
        )

    def _max_workers(self, machines: Sequence[Machine], taken_of: Callable[[str], Amounts]) -> int:
        """Workers beside one store: the store goes where it costs no worker, or the fewest."""
        free = {machine.name: subtract(machine.whole, taken_of(machine.name)) for machine in machines}
        can = [machine for machine in machines if not against(self.worker, machine)]
        counts = {machine.name: copies(self.worker.wants, free[machine.name]) for machine in can}
        alone = count_schedulable_pods(self.worker, can, counts)
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
    """How many times ``wants`` are in ``free``."""
    return max(0, min((free.get(name, 0) // amount for name, amount in wants.items() if amount), default=0))


def count_schedulable_pods(pod: PodRequirements, machines: Sequence[Machine], counts: Counts) -> int:
    """Pods that can be placed, with regard to how they have to lie to one another."""
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
    """Value of a label → names of the machines that have it."""
    found: dict[str, list[str]] = {}
    for machine in machines:
        if key in machine.labels:
            found.setdefault(machine.labels[key], []).append(machine.name)
    return found


def _spread(domains: Mapping[str, Sequence[str]], counts: Counts) -> int:
    """No domain has more than one pod above the emptiest."""
    rooms = [sum(counts.get(name, 0) for name in names) for names in domains.values()]
    return sum(min(room, min(rooms) + 1) for room in rooms)
