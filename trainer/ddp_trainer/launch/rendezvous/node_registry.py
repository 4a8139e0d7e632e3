"""Agents that the store has, and which of them belong to the newest group."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, Self, TypeVar

from ddp_trainer.launch.protocol.messages import Assignment, Generation, Hello, Identity, Node

_PLACEHOLDER: Final = "unknown"
"""Beginning of the token of a member that a store without memory has not heard from yet; no agent has such a token."""


class Fitness(Enum):
    """Result of the preflight of a node that joins a running group."""

    UNKNOWN = auto()
    """No preflight has been held, and none is due."""
    DUE = auto()
    """It has joined, and a preflight is due before it is taken in."""
    UNDER_WAY = auto()
    FIT = auto()
    UNFIT = auto()


@dataclass(slots=True)
class Agent:
    """An agent that has sent Hello, or of which another one has reported, and that is not lost."""

    node: Node
    peer: int | None
    """Its connection; None while it may still come back."""
    port: int | None = None
    """Set when it has joined: none of its workers runs."""
    is_prepared: bool = False
    """Its workers are up and wait for their ranks, so taking it in stops the others only briefly."""
    is_aside: bool = False
    """None of its workers belongs to the group, and it has not joined again: a worker is being replaced."""
    outlive: bool = False
    """Its workers can leave a group without ending."""
    identity: Identity | None = None
    """What it runs, where it has reported that."""
    looks: bool = False
    """It takes part in preflights."""
    fitness: Fitness = Fitness.UNKNOWN
    was_asked_to_prepare: bool = False
    lost_at: float = math.inf
    """When it counts as lost; set by :meth:`NodeRegistry.expire`."""
    leaving: bool = False
    waits_for_name: bool = False
    """Another connection holds its name, and this one waits until that agent is lost."""
    first_rank: int = 0
    """Global rank of its local rank 0, while it is a member of the newest group."""
    clock_offset: float = 0.0
    """Seconds since the epoch by its clock, minus the store's monotonic clock."""

    @classmethod
    def of(cls, hello: Hello, peer: int, known: Agent | None, now: float) -> Self:
        """Return the agent that has just sent Hello; ``known`` is what the store had of it before."""
        return cls(
            node=hello.node,
            peer=peer,
            outlive=hello.outlive,
            identity=hello.identity,
            looks=hello.looks,
            # A node that was in a group has passed its preflight, and comes back without another one.
            fitness=Fitness.FIT if hello.last else Fitness.UNKNOWN,
            leaving=known is not None and known.leaving,
            first_rank=known.first_rank if known else hello.last.first_rank if hello.last else 0,
            clock_offset=hello.clock - now,
        )

    @property
    def has_stopped(self) -> bool:
        """True if none of its workers runs for a group."""
        return self.port is not None or self.is_aside

    @property
    def is_ready(self) -> bool:
        """True if it can be in the next group."""
        return self.port is not None and self.peer is not None and not self.leaving and not self.is_out

    @property
    def is_out(self) -> bool:
        """True if it may not be taken in yet, although it has joined or will."""
        # Asked for each agent at each change: comparisons by identity, cheapest first.
        fitness = self.fitness
        return (fitness is not Fitness.UNKNOWN and fitness is not Fitness.FIT) or self.waits_for_name

    def has_rank(self, rank: int) -> bool:
        """True if a global rank is one of this node's."""
        return self.first_rank <= rank < self.first_rank + self.node.local_world_size


Key = TypeVar("Key")
_Job = tuple[str, Identity | None]
"""Role and program, by which the nodes of one job are told from another's."""


@dataclass(slots=True)
class NodeRegistry:
    """The agents by token, and the newest generation. Look-ups by connection, name and job take constant time."""

    agents: dict[str, Agent] = field(default_factory=dict)
    """Read only; changed by :meth:`add`, :meth:`remove` and :meth:`clear`."""
    generation: Generation | None = None
    """Set by :meth:`begin` and :meth:`adopt`."""
    _ranks: dict[str, int] = field(default_factory=dict)
    """Token → node rank, of the members of the newest generation."""
    _peers: dict[int, Agent] = field(default_factory=dict)
    _names: dict[str, set[str]] = field(default_factory=dict)
    _jobs: dict[_Job, set[str]] = field(default_factory=dict)
    _expiring: set[str] = field(default_factory=set)
    """Tokens of agents that count as lost at some time."""

    @property
    def number(self) -> int:
        """Number of the newest generation; 0 before the first."""
        return self.generation.number if self.generation else 0

    @property
    def fence(self) -> int:
        """Fence of the newest generation; 0 before the first."""
        return self.generation.fence if self.generation else 0

    # ------------------------------------------------------------------ agents

    def add(self, agent: Agent) -> None:
        """Add an agent, in the place of one with the same token."""
        token = agent.node.token
        if token in self.agents:
            self.remove(token)
        self.agents[token] = agent
        self._names.setdefault(agent.node.name, set()).add(token)
        self._jobs.setdefault((agent.node.role, agent.identity), set()).add(token)
        if agent.peer is not None:
            self._peers[agent.peer] = agent
        if agent.lost_at < math.inf:
            self._expiring.add(token)

    def remove(self, token: str) -> None:
        """Forget an agent."""
        agent = self.agents.pop(token)
        _discard(self._names, agent.node.name, token)
        _discard(self._jobs, (agent.node.role, agent.identity), token)
        self._expiring.discard(token)
        if agent.peer is not None and self._peers.get(agent.peer) is agent:
            del self._peers[agent.peer]

    def clear(self) -> None:
        """Forget all agents."""
        for token in list(self.agents):
            self.remove(token)

    def disconnect(self, agent: Agent) -> None:
        """Its connection is gone, and with it the port that it held."""
        if agent.peer is not None and self._peers.get(agent.peer) is agent:
            del self._peers[agent.peer]
        agent.peer = agent.port = None

    def expire(self, agent: Agent, when: float) -> None:
        """Let an agent count as lost at a time of the store's clock; infinity for never."""
        agent.lost_at = when
        (self._expiring.add if when < math.inf else self._expiring.discard)(agent.node.token)

    def of_peer(self, peer: int) -> Agent | None:
        """Return the agent at the other end of a connection."""
        return self._peers.get(peer)

    def next_loss(self) -> float:
        """Return when the next agent counts as lost; infinity where none does."""
        return min((self.agents[token].lost_at for token in self._expiring), default=math.inf)

    def take_lost(self, now: float) -> list[Agent]:
        """Remove and return those that count as lost."""
        lost = [agent for token in self._expiring if (agent := self.agents[token]).lost_at <= now]
        for agent in lost:
            self.remove(agent.node.token)
        return lost

    def connected(self) -> list[Agent]:
        """Return those that have a connection."""
        return list(self._peers.values())

    def ready(self) -> dict[str, Agent]:
        """Return those that can be in the next group, by token."""
        return {token: agent for token, agent in self.agents.items() if agent.is_ready}

    def namesakes(self, node: Node) -> list[Agent]:
        """Return other agents of the same name, such as the one of a pod's former incarnation."""
        tokens = self._names.get(node.name, set()) if node.name else set()
        return [self.agents[token] for token in tokens if token != node.token]

    def jobs(self) -> Iterator[tuple[str, Identity | None, Iterator[Agent]]]:
        """Yield each role and program, with the agents that have them."""
        for (role, identity), tokens in self._jobs.items():
            yield role, identity, (self.agents[token] for token in tokens)

    # ------------------------------------------------------------------ the group

    def begin(self, generation: Generation) -> None:
        """Make a generation the newest."""
        self.generation = generation
        self._ranks = {node.token: rank for rank, node in enumerate(generation.nodes)}

    def adopt(self, last: Assignment, node: Node, lost_at: float) -> None:
        """Make a generation the newest of which one member has reported; the others are unknown until they report.

        Args:
            last: Place of the member.
            node: The member.
            lost_at: When members count as lost that have not reported.
        """
        unknown = [
            Node(token=f"{_PLACEHOLDER}-{last.fence}-{rank}", name="", local_world_size=1)
            for rank in range(last.node_count)
        ]
        self.begin(
            Generation(
                number=last.number,
                fence=last.fence,
                nodes=tuple(unknown),
                master_address=last.master_address,
                master_port=last.master_port,
                restarts=last.restarts,
                restarts_left=last.restarts_left,
            )
        )
        for member in unknown:
            self.add(Agent(node=member, peer=None, lost_at=lost_at))
        self.claim(last, node)

    def claim(self, last: Assignment, node: Node) -> None:
        """Put a member that reports in its place, where the newest generation has an unknown member there."""
        if self.generation is None or last.fence != self.fence or last.node_rank >= len(self.generation.nodes):
            return
        before = self.generation.nodes[last.node_rank].token
        if not before.startswith(_PLACEHOLDER) or node.token in self._ranks:
            return
        nodes = list(self.generation.nodes)
        nodes[last.node_rank] = node
        self.generation = replace(self.generation, nodes=tuple(nodes))
        del self._ranks[before]
        self._ranks[node.token] = last.node_rank
        if before in self.agents:
            self.remove(before)

    def is_member(self, token: str) -> bool:
        """True if it is in the newest group, lost or not."""
        return token in self._ranks

    def members(self) -> list[Agent]:
        """Return the members of the newest group that are not lost, in the order of ranks."""
        return [self.agents[token] for token in self._ranks if token in self.agents]

    def newcomers(self) -> list[Agent]:
        """Return those that are connected, want to be in a group and are not members, ready or not."""
        return [
            agent
            for agent in self._peers.values()
            if not agent.leaving and not agent.is_out and not self.is_member(agent.node.token)
        ]


def _discard(index: dict[Key, set[str]], key: Key, token: str) -> None:
    index[key].discard(token)
    if not index[key]:
        del index[key]
