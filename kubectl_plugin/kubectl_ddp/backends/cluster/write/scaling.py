"""Validation and patch for a new number of worker pods."""

from __future__ import annotations

from kubectl_ddp.engines import ENGINES
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import KUEUE_QUEUE, is_resizable, wants_resizing
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.values.program import QueueResize
from kubectl_ddp.values.quantity import validate_node_count


def to_scale(job: Object, nodes: int) -> Object:
    """Return the patch that sets the number of a job's worker pods. Raises UsageError if the job does not allow it."""
    if KUEUE_QUEUE in job["metadata"]["labels"] and not is_resizable(job):
        raise _not_resizable(job)
    validate_node_count(job_kinds.bounds(job), job["metadata"]["name"], nodes)
    return job_kinds.pods_patch(job, job_kinds.pod_count(job, nodes))


def _not_resizable(job: Object) -> UsageError:
    name = job["metadata"]["name"]
    if wants_resizing(job):
        return UsageError(
            f"Job '{name}' is in a queue of Kueue's whose feature gate ElasticJobsViaWorkloadSlices is off.",
            hint="Ask the administrator of Kueue to turn it on, or submit it again with other --nnodes.",
        )
    return UsageError(
        f"Job '{name}' is in a queue of Kueue's, which stops a job that is scaled while it runs.",
        hint=f"Submit it again with other --nnodes, or with --queue-resize {QueueResize.RUNNING}.",
    )


def scaling_error(job: Object, refusal: UsageError) -> UsageError:
    """Return the error for a job whose engine keeps its number of pods, with the reason that the API server gave."""
    if "immutable" not in refusal.message:
        return refusal
    kind, name = job_kinds.engine_of(job), job["metadata"]["name"]
    others = " or ".join(other.name for other in ENGINES.values() if other.is_scalable)
    why, fix = f"{kind.operator.name} does not let {kind.nodes[0][-1]} change", ""
    if kind.scaling_gate:
        why = f"the feature gate {kind.scaling_gate} of {kind.operator.name} is off"
        fix = "Set the gate in the controller's configuration, or s"
    return UsageError(
        f"A {kind.kind} such as '{name}' cannot be scaled while it runs: {why}.",
        hint=f"{fix or 'S'}ubmit it again with other --nnodes, or with --engine {others}.",
    )
