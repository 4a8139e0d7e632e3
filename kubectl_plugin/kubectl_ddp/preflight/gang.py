"""Checks of all nodes of a job together: resources of the machines for them, and their gang."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from kubectl_ddp.engines import ENGINES, PARTIALLY_ADMITTED, Engine
from kubectl_ddp.preflight.model import Facts, Subject, read
from kubectl_ddp.preflight.nodes import Machine, parse_nodes
from kubectl_ddp.preflight.quantities import Amounts, copies, format_quantity, number, requests_of
from kubectl_ddp.spec.queues import is_kueue_managed
from kubectl_ddp.util.finding import Finding, Severity, error, ok, warning
from kubectl_ddp.util.text_table import pluralize

DEPENDABLE: Final = Engine.JOB
"""Engine without a CRD, whose pods have every field that the API server has."""


def check_machines(subject: Subject, facts: Facts) -> Iterator[Finding]:
    """Check that the allocatable resources of all machines are enough for the nodes of the job.

    It is an upper bound: labels, taints, topology and other pods are left to the scheduler. More never fit.
    """
    wants, machines = requests_of(subject.worker["spec"]), parse_nodes(read(facts.nodes))
    room = sum(copies(wants, machine.whole) for machine in machines)
    nodes, largest = subject.spec.nnodes, subject.spec.largest_pod_count
    grows = facts.grows is True or not isinstance(facts.grows, bool)
    why = "".join(f"; {reason}" for reason in _lacking(wants, machines))
    if room >= largest:
        yield ok(f"The machines have the resources for {size_text(subject, largest)}, if nothing else runs there.")
    elif room >= nodes.minimum:
        yield warning(
            f"The machines never have the resources for more than {room} of {size_text(subject, largest)}{why}.",
            "It trains with those; request fewer nodes with --nnodes, or less per node.",
        )
    else:
        yield Finding(
            Severity.WARNING if grows else Severity.ERROR,
            f"{'Today the job cannot' if grows else 'The job can never'} fit: it needs "
            f"{pluralize(nodes.minimum, 'node')} at the same time, and the machines have the resources for {room}, "
            f"even if nothing else runs there{why}.",
            "Machines seem to be added when pods wait, so this may change; else request less."
            if grows
            else "Request fewer nodes with --nnodes, less per node, or other machines.",
        )


def _lacking(wants: Amounts, machines: Sequence[Machine]) -> Iterator[str]:
    """Yield each requested resource of which no machine has enough for one pod."""
    for name, amount in wants.items():
        largest = max((machine.whole.get(name, 0) for machine in machines), default=0)
        if largest < amount:
            yield f"no machine has {format_quantity(name, amount)}, the largest has {number(name, largest)}"


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


def first_pod_count(subject: Subject) -> int:
    """Return the number of pods with which the job starts.

    This is its minimum of nodes, or all pods with the spares if Kueue admits the job as a whole.
    """
    spec = subject.spec
    is_all_or_nothing = is_kueue_managed(spec) and spec.engine not in PARTIALLY_ADMITTED
    return spec.largest_pod_count if is_all_or_nothing else spec.nnodes.minimum


def size_text(subject: Subject, pods: int) -> str:
    """Return a number of pods in words, as in ``4 nodes and 1 spare`` for all pods of a job."""
    spec = subject.spec
    if spec.spares and pods == spec.largest_pod_count:
        return f"{pluralize(spec.nnodes.maximum, 'node')} and {pluralize(spec.spares, 'spare')}"
    return pluralize(pods, "node")
