"""What a cluster serves decides what is left to it: the engine, and who starts nodes together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.errors import PreflightFailed
from kubectl_ddp.roots import ROOTS
from kubectl_ddp.spec.engine import Engine, Gang
from kubectl_ddp.spec.model import JobSpec

Kind = tuple[str, str]
"""apiVersion and kind."""

GANG_KINDS: Final[Sequence[tuple[Gang, Kind]]] = (
    (Gang.VOLCANO, ("scheduling.volcano.sh/v1beta1", "PodGroup")),
    (Gang.KAI, ("scheduling.run.ai/v2alpha2", "PodGroup")),
    (Gang.SCHEDULER_PLUGINS, ("scheduling.x-k8s.io/v1alpha1", "PodGroup")),
)
"""What each scheduler brings along, in the order in which they are preferred; Kueue is chosen by a queue."""

LEAST_FOR_JOB: Final = (1, 31)
"""The release from which an Indexed Job can say that one node that ended well is enough."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a cluster is."""

    where: str
    """Name of its context."""
    version: tuple[int, int]
    """Of Kubernetes."""
    kinds: frozenset[Kind]
    """Those it serves, of those that are asked about here."""


def kinds_to_discover() -> set[Kind]:
    """What :class:`Facts` have to know."""
    return {(root.api_version, root.kind) for root in ROOTS.values()} | {kind for _, kind in GANG_KINDS}


def resolve_auto(spec: JobSpec, facts: Facts) -> JobSpec:
    """The job with nothing left to choose. Raises PreflightFailed when no engine fits."""
    return dataclasses.replace(spec, engine=choose_engine(spec.engine, facts), gang=choose_gang(spec, facts))


def choose_engine(asked: Engine, facts: Facts) -> Engine:
    """The engine that is asked for, or the first that the cluster serves. Raises PreflightFailed."""
    if asked is not Engine.AUTO:
        return asked
    for name, root in ROOTS.items():
        if (root.api_version, root.kind) in facts.kinds and (name != Engine.JOB or facts.version >= LEAST_FOR_JOB):
            return Engine(name)
    major, minor = facts.version
    raise PreflightFailed(
        f"The cluster of context '{facts.where}' can run no job: it has neither Kubeflow's training operator, nor "
        f"Kubeflow Trainer, nor JobSet, and Kubernetes {major}.{minor} is too old for a job of its own.",
        hint="Install one of them, or run on this machine with --local.",
    )


def choose_gang(spec: JobSpec, facts: Facts) -> Gang:
    """The gang that is asked for, or the first that the cluster serves. Raises PreflightFailed where there is none."""
    if spec.gang is not Gang.AUTO:
        return spec.gang
    if spec.queue is not None:
        return Gang.KUEUE
    for gang, kind in GANG_KINDS:
        if kind in facts.kinds:
            return gang
    raise PreflightFailed(
        f"Nobody in the cluster of context '{facts.where}' starts nodes together: it has neither Volcano, nor KAI, nor "
        "the scheduler plugins, and no queue is named.",
        hint="Name a queue of Kueue's with --queue, or leave --gang out.",
    )
