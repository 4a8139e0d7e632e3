"""Messages between an agent and a worker whose process survives a change of the worker group.

The launcher gives every worker one end of a socket; ``$DDP_CHANNEL`` holds its file descriptor. A worker that does not
use the socket is stopped and restarted as usual. A worker that sends :class:`Reusable` keeps its process, and so its
model, optimizer and data, when its group ends. It sends :class:`Left`, and receives its place in the next group in
:class:`Begin`. One JSON object per line. Standard library only: launcher and trainer both import this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from ddp_trainer.common import strict_json

LINE_BYTES: Final = 1 << 16
"""Longest line, in bytes. The longest message holds a part of an environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reusable:
    """Message of a worker: from now on it can, or cannot, leave a group without exiting."""

    able: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutReport:
    """Message of a worker: the layout of its group's ranks, which a flag of the worker may set."""

    parallel: str
    """Layout in the syntax of :mod:`ddp_trainer.common.parallel_dims`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Message of a worker: it has left its group."""

    generation: int
    """Generation of the group that the worker left; 0 if it has not been in a group."""
    exit_code: int
    """Exit code with which the process would have ended if it had not survived."""
    why: str
    stays: bool = True
    """True if the worker waits for the next group; False if it must end and only saves its state first."""
    publishes: bool = False
    """True if the other workers need the checkpoint that this worker saves, so they should start after it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """Message of the worker's bootstrap: the program has ended, and only the exit of its process remains."""

    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveGroup:
    """Message of the agent: leave this group without exiting."""

    generation: int
    graceful: bool
    """True if all ranks are alive, so that the worker finishes its step first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """Message of the agent: the worker's place in the next group."""

    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables that define the place. They replace those of the previous group."""


Message = Reusable | LayoutReport | Left | Ended | LeaveGroup | Begin

_KINDS: Final = {kind.__name__.lower(): kind for kind in (Reusable, LayoutReport, Left, Ended, LeaveGroup, Begin)}


def encode(message: Message) -> bytes:
    """Return a message as one line."""
    return strict_json.encode(message)


def decode(line: bytes) -> Message:
    """Return the message in one line, which must have exactly the declared fields and types.

    Raises:
        ValueError: For any other line.
    """
    try:
        message: Message = strict_json.decode(_KINDS, line)
    except strict_json.DecodeError as error:
        raise ValueError(f"no message: {error}") from error
    return message


class Lines:
    """Parser that splits a stream of bytes into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[Message]:
        """Add received bytes and return the messages that are now complete.

        Raises:
            ValueError: If the bytes are not messages of this protocol, or a line is too long.
        """
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            raise ValueError(f"a line of more than {LINE_BYTES} bytes")
        return [decode(line) for line in lines]
