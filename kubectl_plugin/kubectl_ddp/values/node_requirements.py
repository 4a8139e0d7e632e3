"""Node requirements beyond cores and memory: GPU type, MIG slices, RDMA devices, and placement."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.spec_warning import SpecWarning
from kubectl_ddp.values.parsers import QUALIFIED
from kubectl_ddp.values.quantity import BadValue

if TYPE_CHECKING:
    from kubectl_ddp.spec.model import JobSpec

GPU_PRODUCT: Final = "nvidia.com/gpu.product"
"""Node label set by NVIDIA's GPU Feature Discovery."""

MIG_PROFILE: Final = r"[1-7]g\.\d{1,3}gb(\.me(\.all)?|\.gfx)?"
"""Pattern of profiles as printed by ``nvidia-smi mig -lgip``; a ``+`` becomes a dot in a resource's name."""

LEVELS: Final = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "kubernetes.io/hostname")
"""Labels with the same meaning on every cluster, widest first; a node is the narrowest level of Kueue's topology."""


class Placement(StrEnum):
    """Kind of placement constraint between the nodes of a job."""

    PACK = "pack"
    """All nodes in one domain."""
    SPREAD = "spread"
    """Nodes evenly over all domains."""
    REPLICA = "replica"
    """Each copy of the model within one domain, which may differ between copies."""


@dataclass(frozen=True, slots=True)
class Topology:
    """Placement constraint by a node label; nodes with the same value form a domain."""

    placement: Placement
    key: str
    """Node label, such as ``topology.kubernetes.io/zone``."""
    required: bool = False
    """True to wait until the constraint can be satisfied."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``pack=LABEL``, ``spread=LABEL`` or ``replica=LABEL``.

        ``pack`` and ``spread`` accept the suffix ``:required`` or ``:preferred``; ``replica`` is always required.

        Raises:
            BadValue: If the text has another form.
        """
        match = re.fullmatch(rf"(?P<placement>pack|spread|replica)=(?P<key>{QUALIFIED})(:(?P<force>\w+))?", text)
        is_replica = match is not None and match["placement"] == Placement.REPLICA
        if match is None or match["force"] not in {None, "required", None if is_replica else "preferred"}:
            raise BadValue(
                f"'{text}' is no wish about the nodes' places",
                hint="Write pack=LABEL or spread=LABEL, with ':required' behind it to rather wait than do without, or "
                "replica=LABEL.",
            )
        return cls(Placement(match["placement"]), match["key"], is_replica or match["force"] == "required")

    def __str__(self) -> str:
        is_said = self.required and self.placement is not Placement.REPLICA
        return f"{self.placement}={self.key}{':required' if is_said else ''}"


@dataclass(frozen=True, slots=True)
class Rdma:
    """RDMA devices per node, by the resource name of the cluster's device plugin."""

    resource: str
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``RESOURCE`` or ``RESOURCE=COUNT``, such as ``rdma/ib=8``. Raises BadValue."""
        match = re.fullmatch(rf"(?P<resource>(?=[^=]*/){QUALIFIED})(=(?P<count>[1-9]\d{{0,2}}))?", text)
        if match is None:
            raise BadValue(
                f"'{text}' names no RDMA resource",
                hint="Write RESOURCE or RESOURCE=COUNT, as in 'rdma/ib=8'; 'kubectl describe node' shows the names.",
            )
        return cls(match["resource"], int(match["count"] or 1))

    def __str__(self) -> str:
        return f"{self.resource}={self.count}"


def is_lower_level(key: str, than: str) -> bool:
    """Return True if domains of one label are known to lie within those of another, as for standard labels."""
    if key == LEVELS[-1]:
        return than != key
    return key in LEVELS and than in LEVELS and LEVELS.index(key) > LEVELS.index(than)


def one_process_has_one_slice(spec: JobSpec) -> None:
    """Check that a node with a MIG slice has one process, since a process can use only one slice."""
    if spec.mig is not None and (spec.gpus > 1 or spec.nproc > 1):
        what, count = ("nproc", spec.nproc) if spec.nproc > 1 else ("gpus", spec.gpus)
        raise UsageError(
            f"A node of MIG slices has one process and one slice, and {what} is {count}: NCCL before 2.30 does not "
            "join slices of one GPU.",
            hint=f"Leave {what} out and ask for more nodes, or for whole GPUs without mig.",
        )


def gpu_type_is_of_a_gpu(spec: JobSpec) -> None:
    """Check that a GPU type comes with GPUs and does not contradict the node selector."""
    if spec.gpu_type is None:
        return
    if not spec.gpus:
        raise UsageError(f"gpuType is '{spec.gpu_type}', and the job asks for no GPU.", hint="Add gpus, or leave it.")
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


def slices_of_one_gpu(spec: JobSpec) -> Iterator[SpecWarning]:
    """Yield a warning if two nodes may get two slices of the same GPU."""
    if spec.mig is not None and spec.nnodes.maximum > 1:
        yield SpecWarning(
            f"Nodes of MIG slices ({spec.mig}) may share one GPU, and NCCL before 2.30 refuses two ranks on one.",
            "Use one node, whole GPUs, or gloo.",
        )
