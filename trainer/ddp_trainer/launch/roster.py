"""Which agents the store knows, and which of them belong to the group that was formed last."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Self

from ddp_trainer.launch.protocol import Generation, Hello, Identity, Node


class Fitness(Enum):
    """What the members found of a node that wants to join them."""

    UNKNOWN = auto()
    """Nobody has looked, or wants to."""
    DUE = auto()
    """It has joined, and is to be looked at before it is taken in."""
    UNDER_WAY = auto()
    FIT = auto()
    UNFIT = auto()


@dataclass(slots=True)
class Agent:
    """A node that has said hello, or that another one told of, and is not lost."""

    node: Node
    peer: int | None
    """Its connection; None while it may still come back."""
    port: int | None = None
    """Set when it has joined: nothing of it runs."""
    is_prepared: bool = False
    """With its workers up and waiting: to take it in stops nobody for long."""
    is_aside: bool = False
    """Nothing of it runs for the group, and it has not joined again: a worker is being replaced."""
    outlive: bool = False
    """Its workers can leave a group without ending."""
    identity: Identity | None = None
    """What it runs, where it said so."""
    looks: bool = False
    """It takes part in preflights."""
    fitness: Fitness = Fitness.UNKNOWN
    was_asked_to_prepare: bool = False
    lost_at: float = math.inf
    """When it counts as lost."""
    leaving: bool = False

    @classmethod
    def of(cls, hello: Hello, peer: int, known: Agent | None) -> Self:
        """One that has just said hello; ``known`` is what was known of it before."""
        return cls(
            node=hello.node,
            peer=peer,
            outlive=hello.outlive,
            identity=hello.identity,
            looks=hello.looks,
            # Who has been in a group has been looked at, and comes back as fast as it can.
            fitness=Fitness.FIT if hello.last else Fitness.UNKNOWN,
            leaving=known is not None and known.leaving,
        )

    @property
    def has_stopped(self) -> bool:
        """Nothing of it runs for a group."""
        return self.port is not None or self.is_aside

    @property
    def is_ready(self) -> bool:
        """It can be in the next group."""
        return self.port is not None and self.peer is not None and not self.leaving and not self.is_out

    @property
    def is_out(self) -> bool:
        """It may not be taken in yet, though it wants to."""
        return self.fitness is not Fitness.UNKNOWN and self.fitness is not Fitness.FIT  # asked for each, all the time


@dataclass(slots=True)
class Roster:
    """The agents by token, and the last generation."""

    agents: dict[str, Agent] = field(default_factory=dict)
    generation: Generation | None = None
    _tokens: tuple[Generation | None, frozenset[str]] = field(default=(None, frozenset()), init=False, repr=False)
    """A generation, and those of its members: of a thousand each is looked for among all, all the time."""

    @property
    def number(self) -> int:
        """Of the last generation; 0 before the first."""
        return self.generation.number if self.generation else 0

    @property
    def fence(self) -> int:
        """Of the last generation; 0 before the first."""
        return self.generation.fence if self.generation else 0

    def of_peer(self, peer: int) -> Agent | None:
        """The agent at the other end of a connection."""
        return next((agent for agent in self.agents.values() if agent.peer == peer), None)

    def is_member(self, token: str) -> bool:
        """Whether it is in the last group, lost or not."""
        if self._tokens[0] is not self.generation:
            nodes = self.generation.nodes if self.generation else ()
            self._tokens = self.generation, frozenset(node.token for node in nodes)
        return token in self._tokens[1]

    def members(self) -> list[Agent]:
        """Members of the last group that are not lost."""
        return [agent for token, agent in self.agents.items() if self.is_member(token)]

    def connected(self) -> list[Agent]:
        """Those that can be told something."""
        return [agent for agent in self.agents.values() if agent.peer is not None]

    def ready(self) -> dict[str, Agent]:
        """Those that can be in the next group, by token."""
        return {token: agent for token, agent in self.agents.items() if agent.is_ready}

    def newcomers(self) -> list[Agent]:
        """Those that are connected, want to be in a group and are not members, ready or not."""
        return [
            agent
            for token, agent in self.agents.items()
            if agent.peer is not None and not agent.leaving and not agent.is_out and not self.is_member(token)
        ]

    def namesakes(self, node: Node) -> list[Agent]:
        """Earlier incarnations of a pod."""
        return [
            agent for agent in self.agents.values() if agent.node.name == node.name and agent.node.token != node.token
        ]

    def take_lost(self, now: float) -> list[Agent]:
        """Remove and return those that count as lost."""
        lost = [agent for agent in self.agents.values() if agent.lost_at <= now]
        for agent in lost:
            del self.agents[agent.node.token]
        return lost
