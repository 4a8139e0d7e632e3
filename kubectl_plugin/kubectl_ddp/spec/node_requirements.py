"""What a job asks of its machines beyond cores and memory: which GPU, a slice of one, RDMA, and where they stand."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Self

from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.quantity import BadValue
from kubectl_ddp.spec.spec_warning import SpecWarning
from kubectl_ddp.spec.values import QUALIFIED

if TYPE_CHECKING:
    from kubectl_ddp.spec.model import JobSpec

GPU_PRODUCT: Final = "nvidia.com/gpu.product"
"""Label that NVIDIA's GPU Feature Discovery gives a machine."""

MIG_PROFILE: Final = r"[1-7]g\.\d{1,3}gb(\.me(\.all)?|\.gfx)?"
"""As ``nvidia-smi mig -lgip`` names them; a ``+`` of it is a dot in a resource's name."""

LEVELS: Final = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone", "kubernetes.io/hostname")
"""Labels that mean the same on every cluster, the widest first; in a topology of Kueue's a machine is the narrowest."""


class Placement(StrEnum):
    """How the nodes of a job are to lie to each other."""

    PACK = "pack"
    """All in one domain."""
    SPREAD = "spread"
    """Evenly over all domains."""
    REPLICA = "replica"
    """Those that hold one copy of the model in one domain, each copy in one of its own choice."""


@dataclass(frozen=True, slots=True)
class Topology:
    """One wish about where the nodes of a job are, by a label that machines of the same domain share."""

    placement: Placement
    key: str
    """Label of machines, as in ``topology.kubernetes.io/zone``."""
    required: bool = False
    """Rather wait than be placed otherwise."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``pack=LABEL`` or ``spread=LABEL``, with ``:required`` or ``:preferred`` behind; or ``replica=LABEL``,
        which always is required. Raises BadValue.
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
    """Network devices for each node, under the name that the cluster's device plugin gives them."""

    resource: str
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``RESOURCE`` or ``RESOURCE=COUNT``, as in ``rdma/ib=8``. Raises BadValue."""
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
    """Whether domains of a label are known to lie in those of another one, which a cluster's own labels do not tell."""
    if key == LEVELS[-1]:
        return than != key
    return key in LEVELS and than in LEVELS and LEVELS.index(key) > LEVELS.index(than)


def one_process_has_one_slice(spec: JobSpec) -> None:
    """A process sees one MIG slice only, whatever it is given."""
    if spec.mig is not None and (spec.gpus > 1 or spec.nproc > 1):
        what, count = ("nproc", spec.nproc) if spec.nproc > 1 else ("gpus", spec.gpus)
        raise UsageError(
            f"A node of MIG slices has one process and one slice, and {what} is {count}: NCCL before 2.30 does not "
            "join slices of one GPU.",
            hint=f"Leave {what} out and ask for more nodes, or for whole GPUs without mig.",
        )


def gpu_type_is_of_a_gpu(spec: JobSpec) -> None:
    """A type is of something, and is said once."""
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
    """Kubernetes takes one rule per label and kind."""
    seen: set[tuple[Placement, str]] = set()
    for wish in spec.topology:
        if (wish.placement, wish.key) in seen:
            raise UsageError(f"The topology '{wish.placement}={wish.key}' is given twice.", hint="Keep one of them.")
        seen.add((wish.placement, wish.key))


def slices_of_one_gpu(spec: JobSpec) -> Iterator[SpecWarning]:
    """Two nodes may land on two slices of one GPU."""
    if spec.mig is not None and spec.nnodes.maximum > 1:
        yield SpecWarning(
            f"Nodes of MIG slices ({spec.mig}) may share one GPU, and NCCL before 2.30 refuses two ranks on one.",
            "Use one node, whole GPUs, or gloo.",
        )
