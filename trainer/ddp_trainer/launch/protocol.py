"""What an agent and the store say to each other: one JSON object per line, each a frozen dataclass here.

The rendezvous port can be reached by everything in the network, so a line is data and never code: no pickle, a
length limit, and a decoder (:mod:`ddp_trainer.exact_json`) that accepts exactly what is declared.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final, get_args

from ddp_trainer import exact_json
from ddp_trainer.hanging.look import Look

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

VERSION: Final = 4
"""Raised when a message changes its meaning; the store refuses agents of another version."""

LINE_BYTES: Final = 1 << 20
"""Longest line; a generation of a thousand nodes takes about a fifth of it."""


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
    RETRY = "retry"
    """This attempt is over, and the pods may be made anew: a retryable failure of a run without restarts of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """One agent, and so one pod."""

    token: str
    """Unique per agent process: a pod that was made anew has a new one under its old name."""
    name: str
    index: int | None = None
    """Place among the pods; ranks follow it."""
    local_world_size: int
    role: str = "default"
    address: str = ""
    """Where peers reach this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the run asked for; the first agent of a run tells the store."""

    min_nodes: int
    max_nodes: int
    max_restarts: int
    """Failures of the whole run that are answered by a restart."""
    settle_seconds: float = 1.0
    """How long nobody must have joined before a group below ``max_nodes`` is formed."""
    last_call_seconds: float = 30.0
    """A group is formed at the latest so long after ``min_nodes`` were there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One worker group: the nodes in the order of their ranks, and where rank 0 listens."""

    number: int
    """Counted from 1."""
    fence: int
    """Grows even where nobody remembers the number: milliseconds since the epoch, or one more than the last."""
    nodes: tuple[Node, ...]
    master_address: str
    master_port: int
    restarts: dict[str, int] = field(default_factory=dict)
    """Cause (:class:`~ddp_trainer.contract.RestartCause`) → count, over the run so far."""
    restarts_left: int = 0

    @property
    def world_size(self) -> int:
        """Number of worker processes."""
        return sum(node.local_world_size for node in self.nodes)

    def node_rank(self, token: str) -> int:
        """Place of a node in this group. Raises ValueError for a stranger."""
        return [node.token for node in self.nodes].index(token)

    def first_rank(self, token: str) -> int:
        """Global rank of the node's local rank 0."""
        return sum(node.local_world_size for node in self.nodes[: self.node_rank(token)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A worker process that ended as it should not have."""

    generation: int
    rank: int
    local_rank: int
    node: str
    exit_code: int
    """As a shell shows it: 128 + n for signal n."""
    reason: str
    """A :class:`~ddp_trainer.contract.FailureReason`."""
    message: str
    timestamp: float
    """Seconds since the epoch, by the clock of the node."""
    stack: str = ""
    host: str = ""
    """Machine that the node ran on."""
    place: str = ""
    """Of the rank in the layout of the job, in words; empty where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """What a node runs, by which jobs are told apart, see :mod:`ddp_trainer.launch.identity`."""

    program: str
    """Its file's name, or the module's."""
    path: str = ""
    """Of the file, on its own node; empty for a module."""
    digest: str = ""
    """Of what is in the file; empty where it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First line of a connection."""

    version: int
    run_id: str
    node: Node
    policy: Policy
    standing: Standing
    last: Generation | None = None
    """The group this agent was in last; it outlives a store that forgot."""
    outlive: bool = False
    """As :class:`Outlive`."""
    identity: Identity | None = None
    """None of a launcher that is not told what it runs, as torchrun's rendezvous handler."""
    looks: bool = False
    """I take part in the preflights of nodes that join, my own among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """No worker of mine runs, and I am ready for the next generation."""

    port: int
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

    generation: int


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

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlive:
    """Whether my workers can leave a group without ending, from now on."""

    able: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Met:
    """What the preflight of my joining came to; the answer to :class:`Meet`."""

    number: int
    fit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """I am here; answered with the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """A worker of mine has not moved for long."""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Looks:
    """How my workers look now; the answer to :class:`Show`."""

    generation: int
    ranks: tuple[Look, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start your workers for this generation."""

    generation: Generation


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """The others' workers stay when they take you in: have yours wait ready, so that the stop is short; then join."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Meet:
    """A node wants to join: hold a preflight with it, before it is taken in."""

    number: int
    """Of this one; in an answer it tells an old one."""
    group: Generation
    """Members that take part, and the newcomer last: they meet where its ranks would."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Stop your workers and join again."""

    graceful: bool
    """Everybody is alive: let the workers finish their step and save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Not yet: too few nodes are there, or the group is full."""

    nodes: int
    """Ready now."""
    spare: bool
    names: tuple[str, ...] = ()
    """Of those that are ready; empty where they are too many to be told about."""
    missing: tuple[str, ...] = ()
    """Of those that are not, as far as the others' names and numbers tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """The run is over for you: stop and exit."""

    verdict: Verdict
    exit_code: int
    late: bool = False
    """It was over before you came."""
    restarts: dict[str, int] = field(default_factory=dict)
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Nobody who heard that the run is over has anything left to do: exit now, all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """You do not belong here."""

    why: str
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Somebody raised the alarm: how do your workers look?"""

    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hung:
    """These ranks are waited for in vain."""

    generation: int
    ranks: tuple[int, ...]
    to_kill: tuple[int, ...]
    """Those that are past their limit, where the agents are to act."""
    sentences: tuple[str, ...]
    """What tells each of them from the others; where there is no rank, one that says what all wait for."""


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
        data = exact_json.loads(line)
        if not isinstance(data, dict) or not isinstance(data.get("is"), str) or data["is"] not in _MESSAGES:
            raise ProtocolError(f"not a message: {line[:40]!r}")
        message: Message = exact_json.parse(_MESSAGES[data.pop("is")], data)
    except exact_json.Malformed as error:
        raise ProtocolError(str(error)) from error
    return message


def _plain(value: DataclassInstance) -> dict[str, object]:
    return {each.name: _plain_value(getattr(value, each.name)) for each in fields(value)}


def _plain_value(value: object) -> object:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(value)
    return [_plain_value(item) for item in value] if isinstance(value, tuple) else value
