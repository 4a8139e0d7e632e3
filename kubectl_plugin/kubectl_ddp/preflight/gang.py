"""Check if all nodes of a job fit at the same time: now, after other jobs have ended, or never."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from kubectl_ddp.engines.registry import ENGINES, PARTIALLY_ADMITTED, Engine
from kubectl_ddp.preflight.model import Facts, Subject, read
from kubectl_ddp.preflight.nodes import Machine, ScheduledPod, parse_nodes, scheduled_pods
from kubectl_ddp.preflight.pod_fit import Place, copies
from kubectl_ddp.preflight.pod_requirements import PodRequirements, pod_requirements
from kubectl_ddp.preflight.scheduler_filters import against
from kubectl_ddp.preflight.subject import pods_of
from kubectl_ddp.spec.queues import is_kueue_managed
from kubectl_ddp.util.finding import Finding, Severity, error, ok, warning
from kubectl_ddp.util.text_table import pluralize

DEPENDABLE: Final = Engine.JOB
"""Engine without a CRD, whose pods have every field that the API server has."""
MOST_NAMED: Final = 3
"""Maximum number of jobs in a message."""


def fits_empty_cluster(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check if the empty cluster has room for the minimum and the maximum number of nodes."""
    place = _place(subject, facts)
    nodes, room, largest = subject.spec.nnodes, place.empty(), subject.spec.largest_pod_count
    grows = facts.grows is True or not isinstance(facts.grows, bool)
    if room >= largest:
        yield ok(f"Empty, the cluster has room for {pluralize(room, 'node')} like this.")
    elif room >= nodes.minimum:
        yield warning(
            f"There will never be more than {room} of {size_text(subject, largest)}: {_why(place)}.",
            "It trains with those; request fewer nodes with --nnodes, or less per node.",
        )
    elif place.worker.wants and place.store and not place.eligible(place.store):
        yield Finding(
            Severity.WARNING if grows else Severity.ERROR,
            f"The pod of the rendezvous store finds no machine: {_reasons(place.store, place.machines)}.",
            "Tolerate the taints of a machine with --toleration; the store tolerates what the job does.",
        )
    elif grows:
        yield warning(
            f"The machines of today have room for {room} of at least {nodes.minimum} nodes, even when empty: "
            f"{_why(place)}. Machines seem to be added when pods wait, so this may change.",
            "Request fewer nodes, or less per node, if it does not.",
        )
    else:
        yield error(
            f"The job can never fit: it needs {pluralize(nodes.minimum, 'node')} at the same time, and the cluster has "
            f"room for {room} even when it is empty: {_why(place)}.",
            "Request fewer nodes with --nnodes, less per node, or other machines.",
        )


def fits_now(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check if there is room now, and which jobs must end otherwise."""
    place, mine = _place(subject, facts), f"{subject.namespace}/{subject.spec.name}"
    occupants = _without(scheduled_pods(read(facts.pods)), {mine})
    nodes = subject.spec.nnodes
    if place.empty() < nodes.minimum:
        return  # reported by fits_empty_cluster
    wanted, largest = first_pod_count(subject), subject.spec.largest_pod_count
    room = place.free_worker_slots(occupants)
    if room >= largest:
        yield ok(f"There is room for {size_text(subject, largest)} now.")
    elif room >= wanted:
        yield ok(
            f"There is room for {room} of {size_text(subject, largest)} now, which is enough to begin; the others join "
            "when there is room."
        )
    else:
        yield warning(
            f"There is room for {room} of {size_text(subject, wanted)} now. {when(place, occupants, wanted)}",
            _less(subject, room),
        )


def reaches_pods(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that the engine passes the group of ``--gang native`` on to its pods."""
    engine = ENGINES[subject.spec.engine]
    if read(facts.has_scheduling_group):
        yield ok(f"The pods of a {engine.kind} can be in a gang of Kubernetes' own scheduler.")
    else:
        yield error(
            f"The {engine.kind} of this cluster drops spec.schedulingGroup of its pods, so --gang native cannot start "
            "them together.",
            f"Update {engine.product} and its CRDs, or use --engine {DEPENDABLE} or another --gang.",
        )


def is_all_or_nothing(subject: Subject) -> bool:
    """Return whether all nodes start together or none. Kueue admits the maximum number of nodes, except for some
    engines.
    """
    return is_kueue_managed(subject.spec) and subject.spec.engine not in PARTIALLY_ADMITTED


def first_pod_count(subject: Subject) -> int:
    """Return the number of pods with which the job starts: its minimum of nodes, or all pods with the spares."""
    return subject.spec.largest_pod_count if is_all_or_nothing(subject) else subject.spec.nnodes.minimum


def size_text(subject: Subject, pods: int) -> str:
    """Return a number of pods in words, as in ``4 nodes and 1 spare`` for all pods of a job."""
    spec = subject.spec
    if spec.spares and pods == spec.largest_pod_count:
        return f"{pluralize(spec.nnodes.maximum, 'node')} and {pluralize(spec.spares, 'spare')}"
    return pluralize(pods, "node")


def without_spares(subject: Subject) -> str:
    """Return the flag that leaves out the spares of a job; empty if it has none."""
    return " --spares 0" if subject.spec.spares else ""


def _less(subject: Subject, room: int) -> str:
    if room == 0:
        return "It waits until then."
    maximum = subject.spec.nnodes.maximum
    if is_all_or_nothing(subject):
        return f"It waits until then; --nnodes {room}{without_spares(subject)} would start now."
    return f"It waits until then; --nnodes {room}:{maximum} would start now."


def when(place: Place, occupants: Sequence[ScheduledPod], wanted: int) -> str:
    """Return a sentence with the jobs that must end before ``wanted`` nodes fit."""
    leaving = jobs_to_finish(place, occupants, wanted)
    if leaving is None:
        closed = [f"{machine.name} {machine.closed}" for machine in place.machines if machine.closed]
        reason = f" ({', '.join(closed[:MOST_NAMED])})" if closed else ""
        return f"There is room on empty machines only, and what runs there does not end by itself{reason}."
    named = " and ".join(leaving[:MOST_NAMED])
    more = f" and {len(leaving) - MOST_NAMED} more" if len(leaving) > MOST_NAMED else ""
    end = "ends" if len(leaving) == 1 else "have ended"
    return f"There is enough when {named}{more} {end}."


def jobs_to_finish(place: Place, occupants: Sequence[ScheduledPod], wanted: int) -> list[str] | None:
    """Return the jobs that must end: one if it is enough, else those that free the most; ``None`` if all are not
    enough.
    """
    jobs = list(dict.fromkeys(occupant.owner for occupant in occupants if occupant.owner))
    gains = {job: place.free_worker_slots(_without(occupants, {job})) for job in jobs}
    for job in jobs:
        if gains[job] >= wanted:
            return [job]
    gone: set[str] = set()
    for job in sorted(jobs, key=lambda job: -gains[job]):
        gone.add(job)
        if place.free_worker_slots(_without(occupants, gone)) >= wanted:
            return sorted(gone, key=jobs.index)
    return None


def _without(occupants: Sequence[ScheduledPod], jobs: set[str]) -> list[ScheduledPod]:
    return [occupant for occupant in occupants if occupant.owner not in jobs]


def _place(subject: Subject, facts: Facts) -> Place:
    worker, store = pods_of(subject)
    store_requirements = pod_requirements(store) if store else None
    return Place(pod_requirements(worker), store_requirements, parse_nodes(read(facts.nodes)))


def _why(place: Place) -> str:
    """Describe the number of such nodes per machine, and the obstacles on the other machines."""
    counted = Counter(copies(place.worker.wants, machine.whole) for machine in place.eligible(place.worker))
    told = [
        f"{count} machine{'s take' if count > 1 else ' takes'} {room}{' each' if count > 1 else ''}"
        for room, count in sorted(counted.items(), reverse=True)
    ]
    keys = [*place.worker.together, *place.worker.spread]
    by = [f"they have to lie by {', '.join(keys)} as asked"] if keys else []
    return "; ".join(filter(None, [*told, _reasons(place.worker, place.machines), *by]))


def _reasons(pod: PodRequirements, machines: Sequence[Machine]) -> str:
    """Describe the obstacles to such a pod, grouped by reason as the scheduler does."""
    if not machines:
        return "there are no machines"
    counted = Counter(why for machine in machines if (why := against(pod, machine)))
    return "; ".join(f"{pluralize(count, 'machine')} cannot: {why}" for why, count in counted.most_common())
