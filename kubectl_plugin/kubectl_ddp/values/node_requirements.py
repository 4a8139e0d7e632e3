"""Node requirements beyond cores and memory: GPU type, MIG slices, RDMA devices, and placement."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Self

from kubectl_ddp.values.parsers import QUALIFIED
from kubectl_ddp.values.quantity import BadValue

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

    PATTERN = rf"(?P<placement>pack|spread|replica)=(?P<key>{QUALIFIED})(:(?P<force>\w+))?"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``pack=LABEL``, ``spread=LABEL`` or ``replica=LABEL``.

        ``pack`` and ``spread`` accept the suffix ``:required`` or ``:preferred``; ``replica`` is always required.

        Raises:
            BadValue: If the text has another form.
        """
        match = re.fullmatch(cls.PATTERN, text)
        is_replica = match is not None and match["placement"] == Placement.REPLICA
        if match is None or match["force"] not in {None, "required", None if is_replica else "preferred"}:
            raise BadValue(
                f"'{text}' is not a placement constraint",
                hint="Write pack=LABEL or spread=LABEL, with ':required' appended to wait until it can be met, or "
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

    PATTERN = rf"(?P<resource>(?=[^=]*/){QUALIFIED})(=(?P<count>[1-9]\d{{0,2}}))?"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``RESOURCE`` or ``RESOURCE=COUNT``, such as ``rdma/ib=8``. Raises BadValue."""
        match = re.fullmatch(cls.PATTERN, text)
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
