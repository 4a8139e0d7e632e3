"""Rules about what a job requires of its nodes: GPU type, MIG slices, placement."""

from __future__ import annotations

from collections.abc import Iterator

from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.util.finding import Finding, warning
from kubectl_ddp.values.node_requirements import GPU_PRODUCT, Placement


def one_process_has_one_slice(spec: JobSpec) -> None:
    """Check that a node with a MIG slice has one process, since a process can use only one slice."""
    if spec.mig is not None and (spec.gpus > 1 or spec.nproc > 1):
        what, count = ("nproc", spec.nproc) if spec.nproc > 1 else ("gpus", spec.gpus)
        raise UsageError(
            f"A node of MIG slices has one process and one slice, and {what} is {count}: NCCL before 2.30 does not "
            "join slices of one GPU.",
            hint=f"Omit {what} and request more nodes, or whole GPUs without mig.",
        )


def gpu_type_is_of_a_gpu(spec: JobSpec) -> None:
    """Check that a GPU type comes with GPUs and does not contradict the node selector."""
    if spec.gpu_type is None:
        return
    if not spec.gpus:
        raise UsageError(f"gpuType is '{spec.gpu_type}', and the job requests no GPU.", hint="Add gpus, or leave it.")
    if spec.node_selector.get(GPU_PRODUCT, spec.gpu_type) != spec.gpu_type:
        raise UsageError(
            f"gpuType says '{spec.gpu_type}', and nodeSelector says '{spec.node_selector[GPU_PRODUCT]}'.",
            hint="Keep one of them.",
        )


def validate_unique_topology(spec: JobSpec) -> None:
    """Check that each label and kind occurs once, as Kubernetes requires."""
    seen: set[tuple[Placement, str]] = set()
    for wish in spec.topology:
        if (wish.placement, wish.key) in seen:
            raise UsageError(f"The topology '{wish.placement}={wish.key}' is given twice.", hint="Keep one of them.")
        seen.add((wish.placement, wish.key))


def slices_of_one_gpu(spec: JobSpec) -> Iterator[Finding]:
    """Yield a warning if two nodes may get two slices of the same GPU."""
    if spec.mig is not None and spec.nnodes.maximum > 1:
        yield warning(
            f"Nodes of MIG slices ({spec.mig}) may share one GPU, and NCCL before 2.30 refuses two ranks on one.",
            "Use one node, whole GPUs, or gloo.",
        )
