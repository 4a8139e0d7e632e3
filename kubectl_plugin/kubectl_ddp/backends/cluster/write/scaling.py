"""Validation and patch for a new number of worker pods."""

from __future__ import annotations

from kubectl_ddp.engines.registry import ENGINES
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.values.node_bounds import validate_node_count


def to_scale(job: Object, nodes: int) -> Object:
    """Return the patch that sets the number of a job's worker pods. Raises UsageError if the job does not allow it."""
    kind, name = job_kinds.engine_of(job), job["metadata"]["name"]
    if not kind.is_scalable:
        others = " or ".join(other.name for other in ENGINES.values() if other.is_scalable)
        raise UsageError(
            f"A {kind.kind} such as '{name}' cannot be scaled while it runs.",
            hint=f"Submit it again with other --nnodes, or with --engine {others}.",
        )
    if KUEUE_QUEUE in job["metadata"]["labels"]:
        raise UsageError(
            f"Job '{name}' is in a queue of Kueue's, which stops a job that is scaled while it runs.",
            hint="Submit it again with other --nnodes.",
        )
    validate_node_count(job_kinds.bounds(job), name, nodes)
    patch: Object = {}
    for path in kind.nodes:
        job_kinds.put(patch, path, job_kinds.pod_count(job, nodes))
    return patch
