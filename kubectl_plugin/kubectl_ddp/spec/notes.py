"""Notes on intended behaviour that may surprise users of other launchers, and on differences between engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kubectl_ddp.engines import ENGINES, PARTIALLY_ADMITTED
from kubectl_ddp.fabrics.catalog import NONE
from kubectl_ddp.spec import fabric
from kubectl_ddp.spec.rules import is_kueue_managed
from kubectl_ddp.spec.torchrun import torchrun_notes
from kubectl_ddp.spec.trainer_arguments import object_store_url
from kubectl_ddp.util.text_table import pluralize
from kubectl_ddp.values.program import Gang

if TYPE_CHECKING:
    from kubectl_ddp.spec.model import JobSpec


def spec_notes(spec: JobSpec) -> list[str]:
    """Return the notes, one or two sentences each."""
    return [*_of_the_job(spec), *_of_the_engine(spec), *_of_the_queue(spec), *torchrun_notes(spec)]


def _of_the_job(spec: JobSpec) -> Iterator[str]:
    if not spec.uses_torchrun and spec.nnodes.is_elastic and 2 * spec.nnodes.minimum <= spec.nnodes.maximum:
        yield (
            f"The minimum of nnodes {spec.nnodes} may be below a majority: one store decides membership, so a "
            "network partition cannot form a second group."
        )
    if (url := object_store_url(spec.args)) is not None:
        yield from _of_the_object_store(spec, url)
    elif spec.checkpoint_claim is None:
        yield (
            "Without a checkpointClaim each node keeps its own copy of the checkpoints: any remaining node is enough "
            "to resume from, and if all nodes are lost together, also by suspend, the run restarts from step 0."
        )
    yield from fabric.fabric_notes(spec)
    if spec.rdma is not None and spec.fabric == NONE:
        yield (
            f"{spec.rdma.resource} needs unlimited locked memory, which only the container runtime of the machines can "
            "grant; a pod under Pod Security 'restricted' cannot request it."
        )


def _of_the_object_store(spec: JobSpec, url: str) -> Iterator[str]:
    if not spec.secret_env and not spec.env_from:
        yield (
            f"The job names no credentials for {url}: give --secret-env or --env-from with those of the store, unless "
            "its pods get a role from the cloud."
        )
    if spec.checkpoint_claim is not None:
        yield f"The trainer keeps its checkpoints in {url}, and none on the volume '{spec.checkpoint_claim}'."


def _of_the_engine(spec: JobSpec) -> Iterator[str]:
    engine = ENGINES.get(spec.engine)
    if engine and spec.nnodes.is_elastic and not engine.is_scalable:
        unless = f" unless the feature gate {engine.scaling_gate} is on" if engine.scaling_gate else ""
        yield (
            f"A {spec.engine} requests {spec.nnodes.maximum} nodes and trains with those that it gets, at least "
            f"{spec.nnodes.minimum}; it cannot be scaled while it runs{unless}."
        )
    if engine and engine.ttl_note and spec.ttl_seconds is not None:
        yield engine.ttl_note


def _of_the_queue(spec: JobSpec) -> Iterator[str]:
    can_shrink = spec.nnodes.minimum < spec.largest_pod_count
    if is_kueue_managed(spec) and can_shrink and spec.engine not in PARTIALLY_ADMITTED:
        spares = f" and {pluralize(spec.spares, 'spare')}" if spec.spares else ""
        yield (
            f"Kueue admits {pluralize(spec.nnodes.maximum, 'node')}{spares} together or none, and stops a job that is "
            f"scaled while it runs; of the engines only {', '.join(sorted(PARTIALLY_ADMITTED))} can start with fewer."
        )
    if spec.gang is Gang.AUTO and spec.queue is None:
        yield "Who starts the nodes together is found out when the job is submitted: render asks no cluster."
