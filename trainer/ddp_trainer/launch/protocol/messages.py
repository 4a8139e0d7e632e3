"""Messages between agents and the store: one JSON object per line, each a frozen dataclass here.

A connection begins with the handshake of :mod:`ddp_trainer.net.handshake`; what follows is decoded by
:mod:`ddp_trainer.net.strict_json`, which accepts exactly the declared fields, types and bounds. No pickle, no code.
Every integer, string and list has a bound in its declaration, and no message to an agent grows with the number of
nodes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, get_args

from ddp_trainer.common.bounds import Bounds, Matching
from ddp_trainer.common.hanging.look import Look
from ddp_trainer.net import strict_json
from ddp_trainer.net.strict_json import MOST_INTEGER

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

VERSION: Final = 5
"""Version of the protocol. It grows when a message changes its meaning; the store refuses agents of another version."""

KEY_PURPOSE: Final = "rendezvous"
"""Purpose of the key by which agents and store authenticate, see :meth:`ddp_trainer.net.run_secret.RunSecret.key`."""

LINE_BYTES: Final = 1 << 18
"""Longest line after the handshake, in bytes; the looks of 16 ranks with their stacks take half of it."""

MOST_NODES: Final = 1 << 16
MOST_LOCAL_RANKS: Final = 1 << 10
MOST_RANKS: Final = 1 << 22
MOST_NAMED: Final = 8
"""Nodes or ranks that a message names; of more it carries the count."""
MOST_MET: Final = 16
"""Nodes in the preflight of one that joins."""
MESSAGE_CHARACTERS: Final = 2_000
STACK_CHARACTERS: Final = 16_000

Token = Annotated[str, Bounds(1, 64), Matching("[0-9A-Za-z._-]+")]
Name = Annotated[str, Bounds(0, 253), Matching("[^\\x00-\\x1f\\x7f-\\x9f]*")]
"""Of a node, host, role or program, and what else is printed within a line."""
Address = Annotated[str, Bounds(0, 253), Matching("[0-9A-Za-z.:%_-]*")]
"""A host name or an IP address."""
FilePath = Annotated[str, Bounds(0, 4096), Matching("[^\\x00-\\x1f\\x7f-\\x9f]*")]
Sentence = Annotated[str, Bounds(0, 2 * MESSAGE_CHARACTERS)]
Stack = Annotated[str, Bounds(0, 2 * STACK_CHARACTERS)]
PortNumber = Annotated[int, Bounds(0, 65535)]
NodeCount = Annotated[int, Bounds(0, MOST_NODES)]
RankNumber = Annotated[int, Bounds(0, MOST_RANKS)]
Number = Annotated[int, Bounds(0, MOST_INTEGER)]
ExitCode = Annotated[int, Bounds(0, 255)]
Seconds = Annotated[float, Bounds(0, 1e12)]
Restarts = Annotated[dict[Annotated[str, Bounds(1, 32)], Number], Bounds(0, 16)]
"""Cause (:class:`~ddp_trainer.common.constants.RestartCause`) → count, over the run so far."""


class ProtocolError(Exception):
    """A line that no peer of ours would send."""


class Standing(StrEnum):
    """What an agent's workers are doing when it (re)connects."""

    IDLE = "idle"
    """None of its workers runs."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """All of its workers exited with 0; it waits for the other nodes."""


class Verdict(StrEnum):
    """How a run ended, as the store decided it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One agent, and so one pod."""

    token: Token
    """Unique per agent process: a pod that was created again has a new one under its old name."""
    name: Name
    index: Annotated[int | None, Bounds(0, 1 << 31)] = None
    """Index of the pod; ranks follow it."""
    local_world_size: Annotated[int, Bounds(1, MOST_LOCAL_RANKS)]
    role: Name = "default"
    address: Address = ""
    """Where peers reach this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the run asked for; the first agent of a run tells the store."""

    min_nodes: NodeCount
    max_nodes: NodeCount
    max_restarts: Number
    """Failures of the whole run that are answered by a restart."""
    settle_seconds: Seconds = 1.0
    """How long nobody must have joined before a group below ``max_nodes`` is formed."""
    last_call_seconds: Seconds = 30.0
    """A group is formed at the latest so long after ``min_nodes`` were there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """Place of one node in a generation: all that its agent and its workers need of it.

    Its size does not depend on the number of nodes. ``restarts`` and ``restarts_left`` are as of the whole run.
    """

    number: Number
    """Number of the generation, counted from 1."""
    fence: Number
    """Grows even where no store remembers the number: milliseconds since the epoch, or one more than the last."""
    node_rank: NodeCount
    node_count: Annotated[int, Bounds(1, MOST_NODES)]
    first_rank: RankNumber
    """Global rank of the node's local rank 0."""
    world_size: RankNumber
    role_first_rank: RankNumber
    """Rank of local rank 0 among the workers of this node's role."""
    role_world_size: RankNumber
    master_address: Address
    master_port: PortNumber
    peer_addresses: Annotated[tuple[Address, ...], Bounds(0, MOST_NAMED)] = ()
    """Addresses of some of the other nodes, rank 0 first."""
    digest: Annotated[str, Bounds(0, 64)] = ""
    """SHA-256 over the tokens of all nodes in the order of their ranks: equal for all members of a generation."""
    restarts: Restarts = field(default_factory=dict)
    restarts_left: Number = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One worker group as the store has it: the nodes in the order of their ranks, and where rank 0 listens."""

    number: Number
    fence: Number
    nodes: Annotated[tuple[Node, ...], Bounds(1, MOST_NODES)]
    master_address: Address
    master_port: PortNumber
    restarts: Restarts = field(default_factory=dict)
    restarts_left: Number = 0

    @property
    def world_size(self) -> int:
        """Number of worker processes."""
        return sum(node.local_world_size for node in self.nodes)

    def assignments(self) -> Iterator[tuple[Node, Assignment]]:
        """Yield each node with its assignment, in the order of ranks. Takes time linear in the number of nodes."""
        role_sizes: dict[str, int] = {}
        for node in self.nodes:
            role_sizes[node.role] = role_sizes.get(node.role, 0) + node.local_world_size
        world_size, digest = self.world_size, digest_of(node.token for node in self.nodes)
        first_rank, role_ranks = 0, dict.fromkeys(role_sizes, 0)
        for node_rank, node in enumerate(self.nodes):
            yield (
                node,
                Assignment(
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
                    peer_addresses=self._addresses_beside(node_rank),
                    digest=digest,
                    restarts=self.restarts,
                    restarts_left=self.restarts_left,
                ),
            )
            first_rank += node.local_world_size
            role_ranks[node.role] += node.local_world_size

    def assignment_of(self, token: str) -> Assignment:
        """Return the assignment of one node. Raises ValueError for a token that is not in the group."""
        for node, assignment in self.assignments():
            if node.token == token:
                return assignment
        raise ValueError(f"{token} is not in generation {self.number}")

    def _addresses_beside(self, node_rank: int) -> tuple[str, ...]:
        others = (node.address for node in self.nodes[: MOST_NAMED + 1] if node is not self.nodes[node_rank])
        return tuple(address for address in others if address)[:MOST_NAMED]


def digest_of(tokens: Iterable[str]) -> str:
    """Return the SHA-256 of the tokens in their order, as 64 hexadecimal digits."""
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A worker process that ended as it should not have."""

    generation: Number
    rank: RankNumber
    local_rank: RankNumber
    node: Name
    """Name of the node. The store sets it to the name of the agent that sent the failure."""
    exit_code: ExitCode
    """As a shell shows it: 128 + n for signal n; 0 of a worker that ended before the others."""
    reason: Annotated[str, Bounds(0, 64)]
    """A :class:`~ddp_trainer.common.constants.FailureReason`."""
    message: Sentence
    timestamp: Seconds
    """Seconds since the epoch, by the clock of the node."""
    stack: Stack = ""
    host: Name = ""
    """Machine that the node ran on."""
    place: Name = ""
    """Of the rank in the layout of the job, in words; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a node runs, by which jobs are told apart, see :mod:`ddp_trainer.launch.protocol.job_identity`."""

    program: Name
    """Its file's name, or the module's."""
    path: FilePath = ""
    """Of the file, on its own node; empty for a module."""
    digest: Annotated[str, Bounds(0, 128)] = ""
    """Of what is in the file; empty where it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First message after the handshake, once per connection."""

    version: Number
    run_id: Annotated[str, Bounds(0, 253)]
    node: Node
    policy: Policy
    standing: Standing
    clock: Seconds = 0.0
    """Seconds since the epoch by this node's clock; fences follow the median of the nodes' clocks."""
    last: Assignment | None = None
    """Place of this agent in its last group, from which a store without memory learns of that group."""
    outlive: bool = False
    """As :class:`Outlive`."""
    identity: Identity | None = None
    """None of a launcher that is not told what it runs, as torchrun's rendezvous handler."""
    looks: bool = False
    """I take part in the preflights of nodes that join, my own among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """No worker of mine runs, and I am ready for the next generation."""

    port: PortNumber
    """Held for the rendezvous of the ranks, in case rank 0 is here."""
    is_prepared: bool = False
    """My workers are there, and only wait to be told their places."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A worker of mine failed and I stop the others; sent again when an earlier error turns up."""

    failure: Failure
    agreed: bool = False
    """It failed in nothing: the ranks have ended their group together, and none of the others is stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """All my workers of this generation exited with 0."""

    generation: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """I was told to stop; the connection closes when my workers are gone."""

    has_left: bool = False
    """None of my workers belongs to the group any more; what they still do, as saving, the others need not wait for."""
    giving_up: Failure | None = None
    """Set by an agent that counts restarts by itself, as stock torchrun's does, and has none left: the run is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aside:
    """No worker of mine belongs to the group any more, and one is being replaced: if you may, go on without me."""

    generation: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlive:
    """Whether my workers can leave a group without ending, from now on."""

    able: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What the preflight of my joining came to; the answer to :class:`Meet`."""

    number: Number
    fit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """I am here; answered with the same."""

    refused: Number = 0
    """In an answer: connections that failed the handshake since the store started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A worker of mine has not moved for long."""

    generation: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """How my workers look now; the answer to :class:`Show`."""

    generation: Number
    ranks: Annotated[tuple[Look, ...], Bounds(0, MOST_LOCAL_RANKS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start your workers for this generation."""

    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """The others' workers stay when they take you in: have yours wait ready, so that the stop is short; then join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet:
    """A node wants to join: hold a preflight with it, before it is taken in."""

    number: Number
    """Of this one; in an answer it tells an old one."""
    names: Annotated[tuple[Name, ...], Bounds(1, MOST_MET)]
    """Of the members that take part, and of the newcomer last: they meet where its ranks would."""
    place: Assignment
    """Of this node among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop your workers and join again."""

    graceful: bool
    """Everybody is alive: let the workers finish their step and save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Not yet: too few nodes are there, or the group is full."""

    nodes: NodeCount
    """Ready now."""
    spare: bool
    names: Annotated[tuple[Name, ...], Bounds(0, MOST_NAMED)] = ()
    """The first of those that are ready; empty where they are too many to be told about."""
    missing: Annotated[tuple[Name, ...], Bounds(0, MOST_NAMED)] = ()
    """The first of those that are not, as far as the others' names and numbers tell."""
    missing_count: NodeCount = 0
    namesake: Annotated[str, Bounds(0, 1024)] = ""
    """Why this node waits although there is room: another connection holds its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The run is over for you: stop and exit."""

    verdict: Verdict
    exit_code: ExitCode
    late: bool = False
    """It was over before you came."""
    restarts: Restarts = field(default_factory=dict)
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Nobody who heard that the run is over has anything left to do: exit now, all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """You do not belong here."""

    why: Annotated[str, Bounds(0, 8192)]
    exit_code: ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Somebody raised the alarm: how do your workers look?"""

    generation: Number


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """The others wait for these ranks: the first :data:`MOST_NAMED` of them, and all of the node that receives this."""

    generation: Number
    ranks: Annotated[tuple[RankNumber, ...], Bounds(0, MOST_NAMED + MOST_LOCAL_RANKS)]
    to_kill: Annotated[tuple[RankNumber, ...], Bounds(0, MOST_NAMED + MOST_LOCAL_RANKS)]
    """Those of ``ranks`` that are past their limit, where the agents are to act."""
    sentences: Annotated[tuple[Sentence, ...], Bounds(0, MOST_NAMED + MOST_LOCAL_RANKS)]
    """How each of ``ranks`` differs from the others; where there is no rank, one sentence on what all wait for."""
    more: RankNumber = 0
    """Ranks that are not among ``ranks``."""

    def told_to(self, first_rank: int, local_world_size: int) -> Hung:
        """Return this message as the node with these ranks receives it."""
        own = range(first_rank, first_rank + local_world_size)
        kept = [place for place, rank in enumerate(self.ranks) if place < MOST_NAMED or rank in own]
        ranks = tuple(self.ranks[place] for place in kept)
        return Hung(
            generation=self.generation,
            ranks=ranks,
            to_kill=tuple(rank for rank in self.to_kill if rank in ranks),
            sentences=tuple(self.sentences[place] for place in kept) if ranks else self.sentences,
            more=len(self.ranks) - len(ranks),
        )


FromAgent = Hello | Join | Failed | Succeeded | Leave | Aside | Outlive | Alarm | Looks | Met | Ping
FromStore = Start | Prepare | Stop | Waiting | Over | Part | Refused | Show | Hung | Meet | Ping
Message = FromAgent | FromStore

_MESSAGES: Final[dict[str, type]] = {kind.__name__.lower(): kind for kind in get_args(FromAgent) + get_args(FromStore)}


def encode(message: Message) -> bytes:
    """The message as one line."""
    return json.dumps({"is": type(message).__name__.lower(), **_plain(message)}, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line. Raises ProtocolError for anything else."""
    try:
        data = strict_json.loads(line)
        if not isinstance(data, dict) or not isinstance(data.get("is"), str) or data["is"] not in _MESSAGES:
            raise ProtocolError(f"not a message: {line[:40]!r}")
        message: Message = strict_json.parse(_MESSAGES[data.pop("is")], data)
    except strict_json.Malformed as error:
        raise ProtocolError(str(error)) from error
    return message


def version_of_hello(line: bytes) -> int:
    """Return the version in the first line of a launcher that sends no handshake; 0 for any other line."""
    try:
        data = strict_json.loads(line)
    except strict_json.Malformed:
        return 0
    version = data.get("version") if isinstance(data, dict) and data.get("is") == "hello" else None
    return version if type(version) is int and 0 < version < VERSION else 0


def _plain(value: DataclassInstance) -> dict[str, object]:
    return {each.name: _plain_value(getattr(value, each.name)) for each in fields(value)}


def _plain_value(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(value)
    return [_plain_value(item) for item in value] if isinstance(value, tuple) else value
