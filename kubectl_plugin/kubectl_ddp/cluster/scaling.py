"""Validation and patch for a new number of worker pods."""

from __future__ import annotations

from kubectl_ddp import roots
from kubectl_ddp.backend import Object
from kubectl_ddp.bounds import validate_node_count
from kubectl_ddp.cluster.jobs import kind_of
from kubectl_ddp.errors import UsageError
from kubectl_ddp.queued import KUEUE_QUEUE


def to_scale(job: Object, nodes: int) -> Object:
    """Return the patch that sets the number of a job's worker pods. Raises UsageError if the job does not allow it."""
    kind, name = kind_of(job), job["metadata"]["name"]
    if not kind.is_scalable:
        raise UsageError(
            f"A {kind.kind} such as '{name}' cannot be scaled while it runs.",
            hint="Submit it again with other --nnodes, or with --engine pytorchjob or job.",
        )
    if KUEUE_QUEUE in job["metadata"]["labels"]:
        raise UsageError(
            f"Job '{name}' is in a queue of Kueue's, which stops a job that is scaled while it runs.",
            hint="Submit it again with other --nnodes.",
        )
    validate_node_count(roots.bounds(job), name, nodes)
    patch: Object = {}
    for path in kind.nodes:
        roots.put(patch, path, nodes)
    return patch
