"""Ranks that NCCL's RAS reports to be behind the others of their communicator.

:func:`lagging_ranks` is the entry point. RAS counts the operations that a rank has launched, per communicator, and from
NCCL 2.31 on per kind of operation. A rank whose kernel or network hangs has launched as many operations as the others.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

_COMMUNICATOR: Final = re.compile(r"^#(?P<name>\d+-\d+) \((?P<hash>[0-9a-f]+)\) MISMATCH")
_MANY: Final = re.compile(r"^\s+\d+ ranks have (?:launched up to operation (?P<last>\d+)|not launched any operations)")
_ONE: Final = re.compile(
    r"^\s+Rank (?P<rank>\d+)(?: has (?:launched up to operation (?P<last>\d+)|(?P<none>not launched any operations)))?"
    r" -- GPU (?P<gpu>\S+) managed by process (?P<process>\d+) on node (?P<node>\S+)"
)


@dataclass(frozen=True, slots=True)
class LaggingRank:
    """A rank that has launched fewer operations than others of its communicator."""

    communicator: str
    """Name of the communicator in RAS, for example ``0-0``."""
    rank: int
    """Rank in the communicator."""
    gpu: str
    """Index of the GPU on its node, as NVML counts."""
    process: int
    """Process id, in the process namespace of its container."""
    node: str
    """Address of the rank's node."""
    launched: int
    """Number of the rank's last launched operation; 0 for none."""
    most: int
    """Number of the last launched operation of the rank that is furthest ahead."""

    @property
    def message(self) -> str:
        """The rank and its operation counts as one sentence."""
        return (
            f"NCCL: rank {self.rank} of communicator #{self.communicator} (GPU {self.gpu}, process {self.process}, "
            f"node {self.node}) has launched {self.launched} operations, others {self.most}"
        )


def lagging_ranks(report: str) -> list[LaggingRank]:
    """Return the ranks that are behind in a report of ``VERBOSE STATUS``, in its order.

    Source: NCCL's documentation of RAS (Troubleshooting), and ``src/ras/client_support.cc``.
    """
    found: list[LaggingRank] = []
    name, launched = "", 0
    counts: dict[str, list[int]] = {}
    for line in report.splitlines():
        if match := _COMMUNICATOR.match(line):
            name, launched = match["name"], 0
        elif not line.startswith(" "):
            name = ""
        elif name and (match := _MANY.match(line)):
            launched = int(match["last"] or 0)
            counts.setdefault(name, []).append(launched)
        elif name and (match := _ONE.match(line)):
            own = int(match["last"] or 0) if match["last"] or match["none"] else launched
            counts.setdefault(name, []).append(own)
            found.append(
                LaggingRank(name, int(match["rank"]), match["gpu"], int(match["process"]), match["node"], own, most=own)
            )
    furthest = {name: max(numbers) for name, numbers in counts.items()}
    known = [replace(rank, most=furthest[rank.communicator]) for rank in found]
    return [rank for rank in known if rank.launched < rank.most]
