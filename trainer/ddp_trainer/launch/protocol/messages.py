"""Messages between agents and the store: one JSON object per line, each a frozen dataclass.

A connection begins with the handshake of :mod:`ddp_trainer.net.handshake`. :func:`encode` and :func:`decode` convert
the messages that follow. :mod:`ddp_trainer.common.strict_json` accepts exactly the declared fields, types and bounds,
and runs no code. Every integer, string and list has a bound in its declaration. No message to an agent grows with the
number of nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Final, get_args

from ddp_trainer.common import strict_json
from ddp_trainer.common.hanging import RankStatus
from ddp_trainer.common.strict_json import Bounds
from ddp_trainer.launch.protocol import message_fields as fields
from ddp_trainer.launch.protocol.generation import Assignment, Node

VERSION: Final = 9
"""Version of the protocol. It increases when the meaning of a message changes. The store refuses agents of another
version."""

KEY_PURPOSE: Final = "rendezvous"
"""Purpose of the key that authenticates agents and store. See :meth:`ddp_trainer.net.run_secret.RunSecret.key`."""

LINE_BYTES: Final = 1 << 18
"""Longest line after the handshake, in bytes. The states of 16 ranks with their stacks take half of it."""


class ProtocolError(Exception):
    """Invalid line from a peer."""


class WorkerState(StrEnum):
    """State of an agent's workers when it connects or reconnects."""

    IDLE = "idle"
    """No worker runs."""
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    """All workers exited with 0, and the agent waits for the other nodes."""


class Verdict(StrEnum):
    """Final result of a run, as decided by the store."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Settings of the run. The first agent of a run sends them to the store."""

    min_nodes: fields.NodeCount
    max_nodes: fields.NodeCount
    max_restarts: fields.Number
    """Restarts after failures that the whole run may use."""
    settle_seconds: fields.Seconds = 1.0
    """Time without a new node before a group below ``max_nodes`` forms."""
    last_call_seconds: fields.Seconds = 30.0
    """Limit of this wait, counted from the first join. After it, any ``min_nodes`` ready nodes form a group."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A worker process that ended with a failure."""

    generation: fields.Number
    rank: fields.RankNumber
    local_rank: fields.RankNumber
    node: fields.Name
    """Name of the node. The store sets it to the name of the agent that sent the failure."""
    exit_code: fields.ExitCode
    """Exit code as a shell shows it: 128 + n for signal n. It is 0 for a worker that ended before the others."""
    reason: Annotated[str, Bounds(0, 64)]
    """A :class:`~ddp_trainer.common.constants.FailureReason`."""
    message: fields.Sentence
    timestamp: fields.Seconds
    """Seconds since the epoch, by the clock of the node."""
    stack: fields.Stack = ""
    host: fields.Name = ""
    """Machine that the node ran on."""
    place: fields.Name = ""
    """Position of the rank in the layout of the job, in words; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramIdentity:
    """Program of a node, which identifies its job. See :mod:`ddp_trainer.launch.protocol.messages`."""

    program: fields.Name
    """Name of the file or of the module."""
    path: fields.FilePath = ""
    """Path of the file on its own node; empty for a module."""
    digest: Annotated[str, Bounds(0, 128)] = ""
    """Digest of the file's contents; empty if it cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """First message after the handshake, once per connection."""

    version: fields.Number
    run_id: Annotated[str, Bounds(0, 253)]
    node: Node
    policy: Policy
    standing: WorkerState
    clock: fields.Seconds = 0.0
    """Seconds since the epoch by this node's clock. Fences follow the median of the nodes' clocks."""
    last: Assignment | None = None
    """Place of this agent in its last group. A store without state restores the group from it."""
    outlive: bool = False
    """The workers can leave a group without ending, as in :class:`ReusableWorkers`."""
    identity: ProgramIdentity | None = None
    """Program of the node; None in a launch of one node."""
    joins_preflight: bool = False
    """The agent takes part in preflights of joining nodes, including its own."""
    crash: Failure | None = None
    """Crash of this agent's predecessor in the same pod, until a store has received it. It counts as a failure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """Agent to store: no worker of this node runs, and the node is ready for the next generation."""

    port: fields.PortNumber
    """Port that the node reserves for the rendezvous of the ranks, in case it hosts rank 0."""
    is_prepared: bool = False
    """The workers are up and wait only for their ranks."""
    is_before_first_step: bool = False
    """Steps are counted on this node, and no worker has taken one since its launcher started."""
    is_importing: bool = False
    """The fork server still imports what the workers need. A group that runs does not stop for this node yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Agent to store: a worker of this node failed, and the agent stops the others.

    The agent sends it again when it finds an earlier error.
    """

    failure: Failure
    agreed: bool = False
    """The worker did not fail. The ranks ended their group together, and no other rank is stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Succeeded:
    """Agent to store: all workers of this node exited with 0 in this generation."""

    generation: fields.Number
    summary: fields.Summary = ""
    """Summary of the run, from the node of rank 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leave:
    """Agent to store: this node received a signal to stop. The connection closes when its workers have ended."""

    has_left: bool = False
    """No worker of the node belongs to the group now. The group does not wait for their remaining work, such as a save.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class StandBy:
    """Agent to store: no worker of this node belongs to the group, and one is being replaced.

    If possible, the next group forms without this node.
    """

    generation: fields.Number


@dataclass(frozen=True, slots=True, kw_only=True)
class ReusableWorkers:
    """Agent to store: from now on, the workers of this node can (or cannot) leave a group without ending."""

    able: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerImports:
    """Agent to store, from node 0, and store to the agents outside of the group: modules that workers have imported
    until their first steps. Fork servers of nodes that wait import them too.
    """

    modules: fields.Modules


@dataclass(frozen=True, slots=True, kw_only=True)
class PreflightResult:
    """Agent to store: result of the preflight of this node, in reply to :class:`RunPreflight`."""

    number: fields.Number
    fit: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Ping:
    """Heartbeat of either side. The store replies to it with the same message."""

    refused: fields.Number = 0
    """Connections that failed the handshake since the store started. Set in the store's reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuspectHang:
    """Agent to store: a worker of this node has not moved for a long time."""

    generation: fields.Number


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStates:
    """Agent to store: current state of the node's workers, in reply to :class:`Show`."""

    generation: fields.Number
    ranks: Annotated[tuple[RankStatus, ...], Bounds(0, fields.MOST_LOCAL_RANKS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Store to agent: start the workers for this generation."""

    assignment: Assignment


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Store to agent: start workers that wait for their ranks, then join.

    Sent when the workers of the running group keep their processes, so that the group stops only briefly.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPreflight:
    """Store to agent: hold a preflight with a node that wants to join."""

    number: fields.Number
    """Number of this preflight. It identifies outdated replies."""
    names: Annotated[tuple[fields.Name, ...], Bounds(1, fields.MOST_MET)]
    """Names of the members that take part, and of the newcomer last. They connect at the port that it holds for its
    ranks."""
    place: Assignment
    """Place of the receiving node among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Store to agent: stop the workers and join again."""

    graceful: bool
    """All nodes are alive, so the workers can finish their step and save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """Store to agent: the node must wait, because too few nodes are ready or the group is full."""

    nodes: fields.NodeCount
    """Number of nodes that are ready."""
    spare: bool
    names: Annotated[tuple[fields.Name, ...], Bounds(0, fields.MOST_NAMED)] = ()
    """The first ready nodes; empty if there are too many to list."""
    missing: Annotated[tuple[fields.Name, ...], Bounds(0, fields.MOST_NAMED)] = ()
    """The first missing nodes, derived from the names and indices of the ready nodes."""
    missing_count: fields.NodeCount = 0
    namesake: Annotated[str, Bounds(0, 1024)] = ""
    """Reason why this node waits although there is room: another connection holds its name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """Store to agent: the run is over for this node, which stops and exits."""

    verdict: Verdict
    exit_code: fields.ExitCode
    late: bool = False
    """The run was over before this node connected."""
    restarts: fields.Restarts = field(default_factory=dict)
    failure: Failure | None = None
    repeats: fields.Number = 0
    """Number of groups in a row that this failure ended before the first step, if no restart can help therefore."""
    summary: fields.Summary = ""
    """Summary of a run that succeeded, for a node that had no part in its end. Kubernetes may delete all other pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Store to agent: all nodes that received :class:`Over` are done, so the node exits together with the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """Store to agent: this node cannot take part in the run."""

    why: Annotated[str, Bounds(0, 8192)]
    exit_code: fields.ExitCode


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPolicy:
    """Store to agent: the run has other settings than this node, because another node came first."""

    policy: Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Show:
    """Store to agent: a node raised a :class:`SuspectHang`, so the node reports the state of its workers."""

    generation: fields.Number


@dataclass(frozen=True, slots=True, kw_only=True)
class HangingRanks:
    """Store to agent: the ranks that the others wait for.

    ``ranks`` has the first ones, :data:`~ddp_trainer.launch.protocol.message_fields.MOST_NAMED` at most, and all of the
    receiving node.
    """

    generation: fields.Number
    ranks: Annotated[tuple[fields.RankNumber, ...], Bounds(0, fields.MOST_NAMED + fields.MOST_LOCAL_RANKS)]
    to_kill: Annotated[tuple[fields.RankNumber, ...], Bounds(0, fields.MOST_NAMED + fields.MOST_LOCAL_RANKS)]
    """Elements of ``ranks`` that an agent with ``--on-hang act`` kills. Empty until a rank is past its limit."""
    sentences: Annotated[tuple[fields.Sentence, ...], Bounds(0, fields.MOST_NAMED + fields.MOST_LOCAL_RANKS)]
    """Difference of each of ``ranks`` from the others. Without ranks, one sentence on what all ranks wait for."""
    more: fields.RankNumber = 0
    """Number of ranks that are not in ``ranks``."""

    def for_node(self, first_rank: int, local_world_size: int) -> HangingRanks:
        """Return this message as the node with these ranks receives it.

        Args:
            first_rank: Global rank of the node's local rank 0.
            local_world_size: Number of ranks of the node.
        """
        own = range(first_rank, first_rank + local_world_size)
        places = [place for place, rank in enumerate(self.ranks) if place < fields.MOST_NAMED or rank in own]
        ranks = tuple(self.ranks[place] for place in places)
        return HangingRanks(
            generation=self.generation,
            ranks=ranks,
            to_kill=tuple(rank for rank in self.to_kill if rank in ranks),
            sentences=tuple(self.sentences[place] for place in places) if ranks else self.sentences,
            more=len(self.ranks) - len(ranks),
        )


FromAgent = (
    Hello
    | Join
    | Failed
    | Succeeded
    | Leave
    | StandBy
    | ReusableWorkers
    | WorkerImports
    | SuspectHang
    | RankStates
    | PreflightResult
    | Ping
)
FromStore = (
    Start
    | Prepare
    | Stop
    | Waiting
    | WorkerImports
    | Over
    | Part
    | Rejected
    | OtherPolicy
    | Show
    | HangingRanks
    | RunPreflight
    | Ping
)
Message = FromAgent | FromStore

_MESSAGES: Final[dict[str, type]] = {kind.__name__.lower(): kind for kind in get_args(FromAgent) + get_args(FromStore)}


def encode(message: Message) -> bytes:
    """Return a message as one line of JSON."""
    return strict_json.encode(message)


def decode(line: bytes) -> Message:
    """Return the message of one line. Raises ProtocolError for any other line."""
    try:
        message: Message = strict_json.decode(_MESSAGES, line)
    except strict_json.DecodeError as error:
        raise ProtocolError(str(error)) from error
    return message


def legacy_protocol_version(line: bytes) -> int:
    """Return the protocol version in the first line of an old launcher, which sends no handshake.

    Returns:
        The version; 0 for any other line.
    """
    try:
        data = strict_json.loads(line)
    except strict_json.DecodeError:
        return 0
    version = data.get("version") if isinstance(data, dict) and data.get("is") == "hello" else None
    return version if type(version) is int and 0 < version < VERSION else 0


def is_same_job(one: ProgramIdentity | None, other: ProgramIdentity | None) -> bool:
    """Return whether two nodes of one role may belong to one job.

    An unknown program (None) may belong to any job.

    >>> is_same_job(ProgramIdentity(program="train.py", digest="1"), ProgramIdentity(program="serve.py"))
    False
    """
    if one is None or other is None:
        return True
    return one.program == other.program and (one.digest == other.digest or one.path == other.path)


def in_use(
    run_id: str, owner: Node, owner_identity: ProgramIdentity | None, own_identity: ProgramIdentity | None
) -> str:
    """Return the message to a node of another job.

    Args:
        run_id: Run id that both jobs use.
        owner: Node of the job that has the run.
        owner_identity: Program of that job.
        own_identity: Program of the refused node.
    """
    return (
        f"The run {run_id!r} is in use by another job, which runs {_describe_program(owner_identity)} on {owner.name}, "
        f"and this one runs {_describe_program(own_identity)}; give it its own --rdzv-id and --rdzv-endpoint, "
        "or, where one job runs several programs, a --role for each."
    )


def _describe_program(identity: ProgramIdentity | None) -> str:
    if identity is None:
        return "an unknown program"
    return identity.path or f"the module {identity.program}"
