"""Choice of engine and gang scheduler from the kinds that a cluster serves."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.engines import ENGINES, Engine
from kubectl_ddp.errors import PreflightFailed
from kubectl_ddp.render.metadata import NATIVE_GROUP, NATIVE_VERSIONS
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import checked
from kubectl_ddp.values.pod import RuntimeMount
from kubectl_ddp.values.program import Gang

Kind = tuple[str, str]
"""Type of a kind: apiVersion and kind."""

GANG_KINDS: Final[Sequence[tuple[Gang, Kind]]] = (
    (Gang.VOLCANO, ("scheduling.volcano.sh/v1beta1", "PodGroup")),
    (Gang.KAI, ("scheduling.run.ai/v2alpha2", "PodGroup")),
    (Gang.SCHEDULER_PLUGINS, ("scheduling.x-k8s.io/v1alpha1", "PodGroup")),
    *((Gang.NATIVE, (f"{NATIVE_GROUP}/{version}", "Workload")) for version in reversed(NATIVE_VERSIONS)),
)
"""Kinds that identify each gang scheduler, in order of preference; Kueue is chosen by a queue instead."""


IMAGE_VOLUMES: Final = (1, 36)
"""First version of Kubernetes in which image volumes are generally available."""


@dataclass(frozen=True, slots=True)
class ClusterKinds:
    """Properties of a cluster."""

    where: str
    """Name of its kubeconfig context."""
    version: tuple[int, int]
    """Version of Kubernetes."""
    kinds: frozenset[Kind]
    """Served kinds, restricted to those of :func:`kinds_to_discover`."""


def kinds_to_discover() -> set[Kind]:
    """Return the kinds that :class:`ClusterKinds` must cover."""
    return {(engine.api_version, engine.kind) for engine in ENGINES.values()} | {kind for _, kind in GANG_KINDS}


def resolve_auto(spec: JobSpec, facts: ClusterKinds) -> JobSpec:
    """Return the job with engine, gang and mount of the runtime image resolved.

    Raises:
        PreflightFailed: If no engine or gang scheduler fits.
        UsageError: If the job's values contradict the chosen ones.
    """
    chosen = dataclasses.replace(spec, engine=choose_engine(spec.engine, facts), gang=choose_gang(spec, facts))
    return checked(dataclasses.replace(chosen, runtime_mount=choose_runtime_mount(spec, facts)))


def choose_runtime_mount(spec: JobSpec, facts: ClusterKinds) -> RuntimeMount | None:
    """Return the requested mount of the runtime image, or an image volume where the cluster serves it."""
    if spec.runtime_image is None or spec.runtime_mount is not None:
        return spec.runtime_mount
    return RuntimeMount.IMAGE if facts.version >= IMAGE_VOLUMES else RuntimeMount.COPY


def choose_engine(requested: Engine, facts: ClusterKinds) -> Engine:
    """Return the requested engine, or the first that the cluster serves.

    Raises:
        PreflightFailed: If the cluster serves none.
    """
    if requested is not Engine.AUTO:
        return requested
    for name, engine in ENGINES.items():
        if (engine.api_version, engine.kind) in facts.kinds and facts.version >= engine.least_kubernetes:
            return Engine(name)
    products = ", nor ".join(engine.product for engine in ENGINES.values() if engine.product)
    major, minor = facts.version
    raise PreflightFailed(
        f"The cluster of context '{facts.where}' can run no job: it has neither {products}, and Kubernetes "
        f"{major}.{minor} is too old for a plain Job (1.31 or later).",
        hint="Install one of them, or run on this machine with --local.",
    )


def choose_gang(spec: JobSpec, facts: ClusterKinds) -> Gang:
    """Return the requested gang scheduler, or the first that the cluster serves.

    Raises:
        PreflightFailed: If the cluster serves none.
    """
    native_version(spec, facts)
    if spec.gang is not Gang.AUTO:
        return spec.gang
    if spec.queue is not None:
        return Gang.KUEUE
    for gang, kind in GANG_KINDS:
        if kind in facts.kinds:
            return gang
    raise PreflightFailed(
        f"The cluster of context '{facts.where}' has no gang scheduler: it has neither Volcano, nor KAI, nor "
        "the scheduler plugins, nor Workload of scheduling.k8s.io, and no queue is named.",
        hint="Name a LocalQueue of Kueue with --queue, or remove --gang.",
    )


def native_version(spec: JobSpec, facts: ClusterKinds | None) -> str:
    """Return the newest version of Workload and PodGroup that the cluster serves and whose fields are known.

    Without facts, or with another gang, the version does not matter.

    Raises:
        PreflightFailed: If the gang of ``spec`` is native, and the cluster serves none.
    """
    if spec.gang is not Gang.NATIVE or facts is None:
        return NATIVE_VERSIONS[0]
    for gang, (group, kind) in GANG_KINDS:
        if gang is Gang.NATIVE and (group, kind) in facts.kinds:
            return group.partition("/")[2]
    raise PreflightFailed(
        f"The API server of context '{facts.where}' does not serve {NATIVE_GROUP} Workload "
        f"({', '.join(NATIVE_VERSIONS)}); the feature gates GenericWorkload and GangScheduling are off.",
        hint="Set both gates on the API server, controller manager and scheduler, and serve a version with "
        f"--runtime-config={NATIVE_GROUP}/{NATIVE_VERSIONS[0]}=true on the API server, or use another --gang.",
    )
