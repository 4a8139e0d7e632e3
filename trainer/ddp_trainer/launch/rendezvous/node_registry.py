"""Registry of the store's agents and of the newest group's members.

:class:`NodeRegistry` holds one :class:`Agent` for each connected or recently connected agent. The store's state machine
owns it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, Self, TypeVar

from ddp_trainer.launch.protocol.generation import Assignment, Generation, Node
from ddp_trainer.launch.protocol.messages import Failure, Hello, Identity

_PLACEHOLDER: Final = "unknown"
"""Prefix of the placeholder token of an unknown member, after a restart of the store. No agent has such a token."""


class PreflightState(Enum):
    """Result of the preflight of a node that joins a running group."""

    UNKNOWN = auto()
    """No preflight was held, and none is due."""
    DUE = auto()
    """The node has joined and must pass a preflight."""
    UNDER_WAY = auto()
    FIT = auto()
    UNFIT = auto()


@dataclass(slots=True)
class Agent:
    """State of an agent that is not lost: it has sent Hello, or is a member that another agent reported."""

    node: Node
    peer: int | None
    """Number of its connection. It is None while the agent may still reconnect."""
    port: int | None = None
    """Port for the ranks. It is set when the agent has joined; none of its workers runs then."""
    is_prepared: bool = False
    """The workers are up and wait for their ranks. To add them stops the others only briefly."""
    is_importing: bool = False
    """The node is new, and its fork server still imports what the workers need: a running group would wait for it."""
    is_aside: bool = False
    """No worker belongs to the group, and the agent has not joined again, because a worker is being replaced."""
    outlive: bool = False
    """The workers can leave a group without ending."""
    identity: Identity | None = None
    """Program that the agent has reported; None if it has reported none."""
    looks: bool = False
    """The agent takes part in preflights."""
    fitness: PreflightState = PreflightState.UNKNOWN
    was_asked_to_prepare: bool = False
    lost_at: float = math.inf
    """Time at which the agent counts as lost. Set by :meth:`NodeRegistry.expire`."""
    leaving: bool = False
    crash: Failure | None = None
    """Crash of the launcher before it in its pod, as it has reported, until it has its name."""
    waits_for_name: bool = False
    """Another connection holds its name. This agent waits until that agent is lost."""
    first_rank: int = 0
    """Global rank of its local rank 0, while the agent is a member of the newest group."""
    clock_offset: float = 0.0
    """Difference in seconds between its clock, since the epoch, and the store's monotonic clock."""

    @classmethod
    def of(cls, hello: Hello, peer: int, known: Agent | None, now: float) -> Self:
        """Return the agent that has just sent Hello.

        Args:
            hello: The message.
            peer: Number of its connection.
            known: Previous state of the same agent in the store; None if there is none.
            now: Time of the store's monotonic clock, in seconds.
        """
        return cls(
            node=hello.node,
            peer=peer,
            outlive=hello.outlive,
            identity=hello.identity,
            looks=hello.looks,
            # A node that was in a group has passed its preflight and needs no other one.
            fitness=PreflightState.FIT if hello.last else PreflightState.UNKNOWN,
            crash=hello.crash or (known.crash if known else None),
            leaving=known is not None and known.leaving,
            first_rank=known.first_rank if known else hello.last.first_rank if hello.last else 0,
            clock_offset=hello.clock - now,
        )

    @property
    def has_stopped(self) -> bool:
        """True if no worker of the agent runs for a group."""
        return self.port is not None or self.is_aside

    @property
    def is_ready(self) -> bool:
        """True if the agent can be in the next group."""
        return self.port is not None and self.peer is not None and not self.leaving and not self.is_out

    @property
    def is_out(self) -> bool:
        """True if a group may not accept the agent yet, although it has joined or will join."""
        # Called for each agent at each change, so it compares by identity, cheapest first.
        fitness = self.fitness
        return (fitness is not PreflightState.UNKNOWN and fitness is not PreflightState.FIT) or self.waits_for_name

    def has_rank(self, rank: int) -> bool:
        """Return whether a global rank belongs to this node."""
        return self.first_rank <= rank < self.first_rank + self.node.local_world_size


Key = TypeVar("Key")
_Job = tuple[str, Identity | None]
"""Role and program, which distinguish the nodes of different jobs."""


@dataclass(slots=True)
class NodeRegistry:
    """Agents by token, and the newest generation.

    Look-ups by connection, name and job take constant time.
    """

    agents: dict[str, Agent] = field(default_factory=dict)
    """Agents by token. Read only; changed by :meth:`add`, :meth:`remove` and :meth:`clear`."""
    generation: Generation | None = None
    """The newest generation. Set by :meth:`begin` and :meth:`restore_generation`."""
    _ranks: dict[str, int] = field(default_factory=dict)
    """Token → node rank, for the members of the newest generation."""
    _peers: dict[int, Agent] = field(default_factory=dict)
    _names: dict[str, set[str]] = field(default_factory=dict)
    _jobs: dict[_Job, set[str]] = field(default_factory=dict)
    _expiring: set[str] = field(default_factory=set)
    """Tokens of agents that count as lost at a finite time."""

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
        """Add an agent, and replace one with the same token."""
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
        """Remove an agent."""
        agent = self.agents.pop(token)
        _discard(self._names, agent.node.name, token)
        _discard(self._jobs, (agent.node.role, agent.identity), token)
        self._expiring.discard(token)
        if agent.peer is not None and self._peers.get(agent.peer) is agent:
            del self._peers[agent.peer]

    def clear(self) -> None:
        """Remove all agents."""
        for token in list(self.agents):
            self.remove(token)

    def mark_disconnected(self, agent: Agent) -> None:
        """Record that an agent has lost its connection, and with it the port that it held."""
        if agent.peer is not None and self._peers.get(agent.peer) is agent:
            del self._peers[agent.peer]
        agent.peer = agent.port = None

    def set_deadline(self, agent: Agent, when: float) -> None:
        """Set the time at which an agent counts as lost, by the store's clock; infinity for never."""
        agent.lost_at = when
        (self._expiring.add if when < math.inf else self._expiring.discard)(agent.node.token)

    def of_peer(self, peer: int) -> Agent | None:
        """Return the agent of a connection; None if there is none."""
        return self._peers.get(peer)

    def next_loss(self) -> float:
        """Return the time at which the next agent counts as lost; infinity if none does."""
        return min((self.agents[token].lost_at for token in self._expiring), default=math.inf)

    def take_lost(self, now: float) -> list[Agent]:
        """Remove and return the agents that count as lost."""
        lost = [agent for token in self._expiring if (agent := self.agents[token]).lost_at <= now]
        for agent in lost:
            self.remove(agent.node.token)
        return lost

    def connected(self) -> list[Agent]:
        """Return the agents that have a connection."""
        return list(self._peers.values())

    def ready(self) -> dict[str, Agent]:
        """Return the agents that can be in the next group, by token."""
        return {token: agent for token, agent in self.agents.items() if agent.is_ready}

    def candidates(self, min_nodes: int) -> dict[str, Agent]:
        """Return the agents that the next group forms from, by token.

        Members of the last group do not wait for a node that still imports, if they are enough without it.
        """
        ready = self.ready()
        if not any(agent.is_importing for agent in ready.values()) or not any(map(self.is_member, ready)):
            return ready
        settled = {token: agent for token, agent in ready.items() if not agent.is_importing}
        return settled if len(settled) >= min_nodes else ready

    def agents_with_same_name(self, node: Node) -> list[Agent]:
        """Return other agents of the same name, such as the agent of a pod before its recreation."""
        tokens = self._names.get(node.name, set()) if node.name else set()
        return [self.agents[token] for token in tokens if token != node.token]

    def jobs(self) -> Iterator[tuple[str, Identity | None, Iterator[Agent]]]:
        """Yield each pair of role and program, with its agents."""
        for (role, identity), tokens in self._jobs.items():
            yield role, identity, (self.agents[token] for token in tokens)

    # ------------------------------------------------------------------ the group

    def begin(self, generation: Generation) -> None:
        """Make a generation the newest one."""
        self.generation = generation
        self._ranks = {node.token: rank for rank, node in enumerate(generation.nodes)}

    def restore_generation(self, last: Assignment, node: Node, lost_at: float) -> None:
        """Adopt a generation that one member has reported. The other members are unknown until they report.

        Args:
            last: Place of the member.
            node: The member.
            lost_at: Time at which members count as lost that have not reported.
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
        """Replace an unknown member of the newest generation by the node that reports its place."""
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
        """Return whether an agent is in the newest group, lost or not."""
        return token in self._ranks

    def members(self) -> list[Agent]:
        """Return the members of the newest group that are not lost, in the order of ranks."""
        return [self.agents[token] for token in self._ranks if token in self.agents]

    def joining_agents(self) -> list[Agent]:
        """Return connected agents that want to join a group and are not members, ready or not."""
        return [
            agent
            for agent in self._peers.values()
            if not agent.leaving and not agent.is_out and not self.is_member(agent.node.token)
        ]


def median_time_ms(agents: Sequence[Agent], now: float) -> float:
    """Return milliseconds since the epoch by the median of the agents' clocks, which ignores one wrong clock.

    Args:
        agents: Agents whose clocks count.
        now: Time of the store's monotonic clock, in seconds.
    """
    return 1000 * (now + sorted(agent.clock_offset for agent in agents)[(len(agents) - 1) // 2])


def _discard(index: dict[Key, set[str]], key: Key, token: str) -> None:
    index[key].discard(token)
    if not index[key]:
        del index[key]
