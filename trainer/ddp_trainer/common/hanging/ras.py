"""Ranks that NCCL's RAS subsystem finds behind the others, read from its status report; pure.

RAS counts operations that a rank has launched, per communicator; from NCCL 2.31 on per kind of operation. A rank whose
kernel or network is stuck has launched as many as the others.
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
class Lagging:
    """A rank that has launched fewer operations than others of its communicator."""

    communicator: str
    """RAS' name, for example ``0-0``."""
    rank: int
    """In the communicator."""
    gpu: str
    """Number on its node, as NVML counts."""
    process: int
    """Process id, in the process namespace of its container."""
    node: str
    """Address of its node."""
    launched: int
    """Number of its last operation; 0 for none."""
    most: int
    """Number of the last operation of the rank that is furthest."""

    @property
    def sentence(self) -> str:
        """Who is behind, and by how much."""
        return (
            f"NCCL: rank {self.rank} of communicator #{self.communicator} (GPU {self.gpu}, process {self.process}, "
            f"node {self.node}) has launched {self.launched} operations, others {self.most}"
        )


def lagging_ranks(report: str) -> list[Lagging]:
    """Return the ranks that are behind in a report of ``VERBOSE STATUS``, in its order.

    Source: NCCL's documentation of RAS (Troubleshooting), and ``src/ras/client_support.cc``.
    """
    found: list[Lagging] = []
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
                Lagging(name, int(match["rank"]), match["gpu"], int(match["process"]), match["node"], own, most=own)
            )
    furthest = {name: max(numbers) for name, numbers in counts.items()}
    known = [replace(each, most=furthest[each.communicator]) for each in found]
    return [each for each in known if each.launched < each.most]
