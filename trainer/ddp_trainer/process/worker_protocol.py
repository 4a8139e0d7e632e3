"""What an agent and a worker that can stay alive between two groups say to each other.

The launcher gives every worker one end of a socket, whose number stands in ``$DDP_CHANNEL``; a worker that knows
nothing of it never touches it, and is stopped and started as ever. One that says :class:`Able` keeps its process, and
so its model, optimizer and data, when its group ends: it says :class:`Left`, and :class:`Begin` tells its place in the
next one. One JSON object per line. Standard library only: launcher and trainer both import this.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Final

from ddp_trainer.net import strict_json

LINE_BYTES: Final = 1 << 16
"""Longest line; the longest message is a part of an environment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Able:
    """From the worker: whether I can leave a group without ending, from now on."""

    able: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Laid:
    """From the worker: how the ranks of my groups share one model, which a flag of mine may say."""

    parallel: str
    """As :mod:`ddp_trainer.common.parallel_dims` reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """From the worker: I belong to no group any more."""

    generation: int
    """Of the group that was left; 0 of one that has not been in any."""
    exit_code: int
    """What this process would have ended with, had it not stayed."""
    why: str
    stays: bool = True
    """I wait for the next one; else I was told to end, and only save yet."""
    publishes: bool = False
    """The others lack what I save: they had better begin when it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """From the worker's bootstrap: the program is over, and only the exit of its process is left."""

    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Regroup:
    """From the agent: leave this group; end nothing."""

    generation: int
    graceful: bool
    """Everybody is alive: finish the step first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begin:
    """From the agent: your place in the next group."""

    environment: dict[str, str] = field(default_factory=dict)
    """Variables that tell it; they replace those of the group before."""


Message = Able | Laid | Left | Ended | Regroup | Begin

_KINDS: Final = {kind.__name__.lower(): kind for kind in (Able, Laid, Left, Ended, Regroup, Begin)}


def encode(message: Message) -> bytes:
    """The message as one line."""
    return json.dumps({"is": type(message).__name__.lower(), **asdict(message)}).encode() + b"\n"


def decode(line: bytes) -> Message:
    """The message of one line, with exactly the declared fields and types. Raises ValueError for anything else."""
    try:
        data = strict_json.loads(line)
        kind = _KINDS.get(str(data.pop("is", ""))) if isinstance(data, dict) else None
        if kind is None:
            raise ValueError(f"no message: {line[:40]!r}")
        message: Message = strict_json.parse(kind, data)
    except strict_json.Malformed as error:
        raise ValueError(f"no message: {error}") from error
    return message


class Lines:
    """Bytes as they come, cut into messages."""

    def __init__(self) -> None:
        self._rest = b""

    def take(self, data: bytes) -> list[Message]:
        """Those that are whole now. Raises ValueError for bytes that no peer of ours sends."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            raise ValueError(f"a line of more than {LINE_BYTES} bytes")
        return [decode(line) for line in lines]
