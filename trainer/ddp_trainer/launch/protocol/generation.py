"""Worker group of one generation: its nodes, and the place of each node in it.

The store makes a :class:`Generation` and sends each agent an :class:`Assignment`, whose size does not depend on the
number of nodes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated

from ddp_trainer.common.strict_json import Bounds
from ddp_trainer.launch.protocol import message_fields as fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One agent, which is one pod."""

    token: fields.Token
    """Unique per agent process. A recreated pod has the old name and a new token."""
    name: fields.Name
    index: Annotated[int | None, Bounds(0, 1 << 31)] = None
    """Index of the pod. It determines the order of ranks."""
    local_world_size: Annotated[int, Bounds(1, fields.MOST_LOCAL_RANKS)]
    role: fields.Name = "default"
    address: fields.Address = ""
    """Address at which peers reach this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Place of one node in a generation, with everything that its agent and its workers need.

    Its size does not depend on the number of nodes. ``restarts`` and ``restarts_left`` count for the whole run.
    """

    number: fields.Number
    """Number of the generation, counted from 1."""
    fence: fields.Number
    """Order of the groups, even where no store keeps the number: milliseconds since the epoch, or the last fence + 1.
    """
    node_rank: fields.NodeCount
    node_count: Annotated[int, Bounds(1, fields.MOST_NODES)]
    first_rank: fields.RankNumber
    """Global rank of the node's local rank 0."""
    world_size: fields.RankNumber
    role_first_rank: fields.RankNumber
    """Rank of local rank 0 among the workers of this node's role."""
    role_world_size: fields.RankNumber
    master_address: fields.Address
    master_port: fields.PortNumber
    peer_addresses: Annotated[tuple[fields.Address, ...], Bounds(0, fields.MOST_NAMED)] = ()
    """Addresses of some of the other nodes, rank 0 first."""
    digest: Annotated[str, Bounds(0, 64)] = ""
    """SHA-256 over the tokens of all nodes in the order of their ranks: equal for all members of a generation."""
    restarts: fields.Restarts = field(default_factory=dict)
    restarts_left: fields.Number = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One worker group as the store stores it: the nodes in the order of their ranks, and the address of rank 0."""

    number: fields.Number
    fence: fields.Number
    nodes: Annotated[tuple[Node, ...], Bounds(1, fields.MOST_NODES)]
    master_address: fields.Address
    master_port: fields.PortNumber
    restarts: fields.Restarts = field(default_factory=dict)
    restarts_left: fields.Number = 0

    @property
    def world_size(self) -> int:
        """Number of worker processes."""
        return sum(node.local_world_size for node in self.nodes)

    def assignments(self) -> list[tuple[Node, Assignment]]:
        """Return each node with its assignment, in the order of ranks.

        Takes time linear in the number of nodes.
        """
        role_sizes: dict[str, int] = {}
        for node in self.nodes:
            role_sizes[node.role] = role_sizes.get(node.role, 0) + node.local_world_size
        world_size, digest = self.world_size, digest_of(node.token for node in self.nodes)
        first_rank, role_ranks = 0, dict.fromkeys(role_sizes, 0)
        assignments = []
        for node_rank, node in enumerate(self.nodes):
            assignment = Assignment(
                number=self.number,
                fence=self.fence,
                node_rank=node_rank,
                node_count=len(self.nodes),
                first_rank=first_rank,
                world_size=world_size,
                role_first_rank=role_ranks[node.role],
                role_world_size=role_sizes[node.role],
                master_address=self.master_address,
                master_port=self.master_port,
                peer_addresses=self._peer_addresses(node_rank),
                digest=digest,
                restarts=self.restarts,
                restarts_left=self.restarts_left,
            )
            assignments.append((node, assignment))
            first_rank += node.local_world_size
            role_ranks[node.role] += node.local_world_size
        return assignments

    def _peer_addresses(self, node_rank: int) -> tuple[str, ...]:
        others = (node.address for node in self.nodes[: fields.MOST_NAMED + 1] if node is not self.nodes[node_rank])
        return tuple(address for address in others if address)[: fields.MOST_NAMED]


def digest_of(tokens: Iterable[str]) -> str:
    """Return the SHA-256 of the tokens in their order, as 64 hexadecimal digits."""
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()
