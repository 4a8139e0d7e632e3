"""Agents of a run as the store sees them: who is there, who may take part, and who has which name.

:class:`NodeRegistry` holds one :class:`RegisteredAgent` for each connected or recently connected agent. The store's
state machine owns it. :func:`rejection_reason` decides whether an agent may take part, and :func:`is_message_valid`
whether a message of an admitted agent counts. :func:`claim_name` gives an agent its name: a name belongs to its
connection, and a recreated pod waits until the former pod is lost or leaves.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import Final, Self, TypeVar

from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.generation import Assignment, Generation, Node
from ddp_trainer.launch.protocol.messages import Failure, Hello, ProgramIdentity, Waiting, in_use, is_same_job
from ddp_trainer.process.fence import is_valid_fence

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
class RegisteredAgent:
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
    identity: ProgramIdentity | None = None
    """Program that the agent has reported; None if it has reported none."""
    joins_preflight: bool = False
    """The agent takes part in preflights."""
    fitness: PreflightState = PreflightState.UNKNOWN
    was_asked_to_prepare: bool = False
    lost_at: float = math.inf
    """Time at which the agent counts as lost. Set by :meth:`NodeRegistry.set_deadline`."""
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
    def of(cls, hello: Hello, peer: int, known: RegisteredAgent | None, now: float) -> Self:
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
            joins_preflight=hello.joins_preflight,
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
_Job = tuple[str, ProgramIdentity | None]
"""Role and program, which distinguish the nodes of different jobs."""


@dataclass(slots=True)
class NodeRegistry:
    """Agents by token, and the newest generation.

    Look-ups by connection, name and job take constant time.
    """

    agents: dict[str, RegisteredAgent] = field(default_factory=dict)
    """Agents by token. Read only; changed by :meth:`add`, :meth:`remove` and :meth:`clear`."""
    generation: Generation | None = None
    """The newest generation. Set by :meth:`begin` and :meth:`restore_generation`."""
    number: int = 0
    """Number of the newest generation; 0 before the first."""
    fence: int = 0
    """Fence of the newest generation; 0 before the first."""
    expiring: set[str] = field(default_factory=set)
    """Tokens of agents that count as lost at a finite time. Read only."""
    _ranks: dict[str, int] = field(default_factory=dict)
    """Token → node rank, for the members of the newest generation."""
    _peers: dict[int, RegisteredAgent] = field(default_factory=dict)
    _names: dict[str, set[str]] = field(default_factory=dict)
    _jobs: dict[_Job, set[str]] = field(default_factory=dict)

    # ------------------------------------------------------------------ agents

    def add(self, agent: RegisteredAgent) -> None:
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
            self.expiring.add(token)

    def remove(self, token: str) -> None:
        """Remove an agent."""
        agent = self.agents.pop(token)
        _discard(self._names, agent.node.name, token)
        _discard(self._jobs, (agent.node.role, agent.identity), token)
        self.expiring.discard(token)
        if agent.peer is not None and self._peers.get(agent.peer) is agent:
            del self._peers[agent.peer]

    def clear(self) -> None:
        """Remove all agents."""
        for token in list(self.agents):
            self.remove(token)

    def mark_disconnected(self, agent: RegisteredAgent) -> None:
        """Record that an agent has lost its connection, and with it the port that it held."""
        if agent.peer is not None and self._peers.get(agent.peer) is agent:
            del self._peers[agent.peer]
        agent.peer = agent.port = None

    def set_deadline(self, agent: RegisteredAgent, when: float) -> None:
        """Set the time at which an agent counts as lost, by the store's clock; infinity for never."""
        agent.lost_at = when
        (self.expiring.add if when < math.inf else self.expiring.discard)(agent.node.token)

    def of_peer(self, peer: int) -> RegisteredAgent | None:
        """Return the agent of a connection; None if there is none."""
        return self._peers.get(peer)

    def sender_of(self, peer: int, message: messages.FromAgent) -> RegisteredAgent | None:
        """Return the agent of a connection; None if there is none, or if its message does not count."""
        agent = self._peers.get(peer)
        return agent if agent is not None and is_message_valid(agent, message, self) else None

    def next_loss(self) -> float:
        """Return the time at which the next agent counts as lost; infinity if none does."""
        return min((self.agents[token].lost_at for token in self.expiring), default=math.inf)

    def take_lost(self, now: float) -> list[RegisteredAgent]:
        """Remove and return the agents that count as lost."""
        lost = [agent for token in self.expiring if (agent := self.agents[token]).lost_at <= now]
        for agent in lost:
            self.remove(agent.node.token)
        return lost

    def connected(self) -> list[RegisteredAgent]:
        """Return the agents that have a connection."""
        return list(self._peers.values())

    def ready(self) -> dict[str, RegisteredAgent]:
        """Return the agents that can be in the next group, by token."""
        return {token: agent for token, agent in self.agents.items() if agent.is_ready}

    def candidates(self, min_nodes: int) -> dict[str, RegisteredAgent]:
        """Return the agents that the next group forms from, by token.

        Members of the last group do not wait for a node that still imports, if they are enough without it.
        """
        ready = self.ready()
        if not any(agent.is_importing for agent in ready.values()) or not any(map(self.is_member, ready)):
            return ready
        settled = {token: agent for token, agent in ready.items() if not agent.is_importing}
        return settled if len(settled) >= min_nodes else ready

    def agents_with_same_name(self, node: Node) -> list[RegisteredAgent]:
        """Return other agents of the same name, such as the agent of a pod before its recreation."""
        tokens = self._names.get(node.name, set()) if node.name else set()
        return [self.agents[token] for token in tokens if token != node.token]

    def jobs(self) -> Iterator[tuple[str, ProgramIdentity | None, Iterator[RegisteredAgent]]]:
        """Yield each pair of role and program, with its agents."""
        for (role, identity), tokens in self._jobs.items():
            yield role, identity, (self.agents[token] for token in tokens)

    # ------------------------------------------------------------------ the group

    def begin(self, generation: Generation) -> None:
        """Make a generation the newest one."""
        self.generation, self.number, self.fence = generation, generation.number, generation.fence
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
            self.add(RegisteredAgent(node=member, peer=None, lost_at=lost_at))
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

    def members(self) -> list[RegisteredAgent]:
        """Return the members of the newest group that are not lost, in the order of ranks."""
        return [self.agents[token] for token in self._ranks if token in self.agents]

    def has_stopped(self) -> bool:
        """Return whether no worker of the newest group runs, as far as its members that are not lost have reported."""
        return all(member.has_stopped for member in self.members())

    def joining_agents(self) -> list[RegisteredAgent]:
        """Return connected agents that want to join a group and are not members, ready or not."""
        return [
            agent
            for agent in self._peers.values()
            if not agent.leaving and not agent.is_out and not self.is_member(agent.node.token)
        ]


def median_time_ms(agents: Sequence[RegisteredAgent], now: float) -> float:
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


MOST_AHEAD: Final = 1_000_000
"""Most generations that an agent may be ahead of the store. A larger number is ignored."""


def rejection_reason(hello: messages.Hello, run_id: str, registry: NodeRegistry) -> str:
    """Return the reason why an agent cannot take part in the run, as a sentence; empty if it can.

    Args:
        hello: First message of the agent.
        run_id: Id of the run. If empty, the store has none yet and accepts any.
        registry: Agents of the run.
    """
    if hello.version != messages.VERSION:
        versions = f"version {messages.VERSION} of the protocol, this launcher {hello.version}"
        return f"The store speaks {versions}; use one image."
    if run_id and hello.run_id != run_id:
        return f"The store serves another run than {hello.run_id!r}: a newer submission has replaced this one."
    policy = hello.policy
    if not 1 <= policy.min_nodes <= policy.max_nodes:
        return f"No group of {policy.min_nodes}:{policy.max_nodes} nodes can be formed."
    is_new = hello.last is None and hello.node.token not in registry.agents
    has_group = is_new and any(member.peer is not None for member in registry.members())
    others = _other_job_agents(hello, registry) if is_new else iter(())
    owner = next((agent for agent in others if registry.is_member(agent.node.token) or not has_group), None)
    return in_use(hello.run_id, owner.node, owner.identity, hello.identity) if owner else ""


def has_other_numbers(own: messages.Policy, run: messages.Policy) -> bool:
    """Return whether a node was started with another number of nodes or restarts than the run has."""
    return (own.min_nodes, own.max_nodes, own.max_restarts) != (run.min_nodes, run.max_nodes, run.max_restarts)


def is_newer_group(hello: messages.Hello, registry: NodeRegistry, now_ms: float) -> bool:
    """Return whether an agent reports a group that the store must adopt.

    A store without state adopts the group of the first member that connects. A store adopts no other group while a
    member of its group is connected. No store adopts a fence far in the future.

    Args:
        hello: First message of the agent.
        registry: Agents of the run.
        now_ms: Current time, in milliseconds since the epoch.
    """
    last = hello.last
    if last is None or last.fence <= registry.fence or not is_valid_fence(last.fence, now_ms / 1000):
        return False
    return not any(member.peer is not None for member in registry.members())


def rejected_agents(hello: messages.Hello, registry: NodeRegistry) -> Iterator[tuple[RegisteredAgent, str]]:
    """Yield agents of another job that a store without state has admitted, each with its refusal."""
    for agent in list(_other_job_agents(hello, registry)):
        if not registry.is_member(agent.node.token):
            yield agent, in_use(hello.run_id, hello.node, hello.identity, agent.identity)


def _other_job_agents(hello: messages.Hello, registry: NodeRegistry) -> Iterator[RegisteredAgent]:
    """Yield agents that run another program. An agent that leaves, or whose pod was replaced, does not count."""
    for role, identity, agents in registry.jobs():
        if role != hello.node.role or is_same_job(identity, hello.identity):
            continue
        yield from (agent for agent in agents if not agent.leaving and agent.node.name != hello.node.name)


def is_message_valid(agent: RegisteredAgent, message: messages.FromAgent, registry: NodeRegistry) -> bool:
    """Return whether a message counts.

    Every agent holds the secret of the run but may still be wrong. Failures count only for the ranks of the agent that
    sends them, and reports only for the newest group.
    """
    match message:
        case messages.Failed():
            return registry.is_member(agent.node.token) and agent.has_rank(message.failure.rank)
        case messages.Succeeded() | messages.StandBy():
            return message.generation == registry.number and registry.is_member(agent.node.token)
        case messages.WorkerImports():
            return registry.is_member(agent.node.token) and agent.first_rank == 0
        case messages.SuspectHang() | messages.RankStates():
            return message.generation == registry.number
        case _:
            return True


def should_prepare(agent: RegisteredAgent, registry: NodeRegistry) -> bool:
    """Return whether a node prepares its workers before a running group stops for it.

    This is so only if all members can keep their processes, because the stop is then short. A node receives only one
    request, because it may be unable to prepare.
    """
    is_due = not (agent.is_prepared or agent.was_asked_to_prepare or registry.is_member(agent.node.token))
    members = registry.members() if is_due else []
    return bool(members) and all(member.outlive for member in members)


_NAME_CONFLICT: Final = (
    "Another agent named {name} is connected, and this one takes its place when that one leaves; "
    "give each node its own name if both are to run."
)


def name_conflict_message(agent: RegisteredAgent) -> Waiting:
    """Return the message to an agent that waits for its name."""
    return Waiting(nodes=0, spare=False, namesake=_NAME_CONFLICT.format(name=agent.node.name))


def claim_name(agent: RegisteredAgent, registry: NodeRegistry) -> list[RegisteredAgent] | None:
    """Give an agent that connects its name, or let it wait for the name.

    Returns:
        The former agents of the name, which all leave; None if the agent reconnects or waits.
    """
    known = registry.agents.get(agent.node.token)
    if known and not known.waits_for_name:
        return None  # it already has the name and reconnects
    namesakes = registry.agents_with_same_name(agent.node)
    if not all(namesake.leaving for namesake in namesakes):
        agent.waits_for_name = True
        return None
    return namesakes


def pass_on_name(lost: RegisteredAgent, registry: NodeRegistry) -> RegisteredAgent | None:
    """Give the name of a lost agent to the agent that has waited for it longest, and return that agent."""
    if lost.waits_for_name:
        return None  # it had no name
    heirs = [agent for agent in registry.agents_with_same_name(lost.node) if agent.waits_for_name]
    heir = min(heirs, key=lambda agent: agent.peer or 0, default=None)  # the one that connected first
    if heir is not None:
        heir.waits_for_name = False
    return heir
