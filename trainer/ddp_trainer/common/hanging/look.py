"""What a rank looks like from outside, as agents tell the store: where it is, since when, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, Final

from ddp_trainer.common.bounds import Bounds

MOST_RANKS: Final = 1 << 22
MOST_GROUPS: Final = 16
"""Process groups of which a rank reports its position."""
WARNING: Final = 0.5
"""Part of a limit after which it is told; at the limit it is acted on."""


class RankState(StrEnum):
    """What the kernel and the worker's own thread say about a rank."""

    ALIVE = "alive"
    STOPPED = "stopped"
    """By SIGSTOP or a terminal; it will not go on by itself."""
    TRACED = "traced"
    """A debugger holds it, and whoever sits there is to be left alone."""
    DEAF = "deaf"
    """No thread of Python has had a turn for long: something holds the GIL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """How far a rank is in one process group, as torch's flight recorder counts; -1 where torch does not.

    On a GPU a collective is enqueued by the host, started when its kernel runs, and completed when that has ended.
    """

    group: Annotated[str, Bounds(0, 200)]
    """torch's name, the same on all ranks of the group; empty for the default group."""
    enqueued: Annotated[int, Bounds(-1, 1 << 53)]
    started: Annotated[int, Bounds(-1, 1 << 53)] = -1
    """With ``TORCH_NCCL_ENABLE_TIMING=1`` alone."""
    completed: Annotated[int, Bounds(-1, 1 << 53)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """One rank at one moment."""

    rank: Annotated[int, Bounds(0, MOST_RANKS)]
    local_rank: Annotated[int, Bounds(0, MOST_RANKS)]
    node: Annotated[str, Bounds(0, 253)]
    state: RankState
    seconds: Annotated[float, Bounds(-3600, 1e12)]
    """Since it was last seen to move."""
    limit: Annotated[float | None, Bounds(0, 1e12)]
    """So long it may stay where it is; None for ever."""
    notice: Annotated[float | None, Bounds(0, 1e12)] = None
    """Seconds after which it is reported if other ranks wait for it; None for never, or for half of the limit."""
    section: Annotated[str, Bounds(0, 64)] = ""
    """That it has told; empty for a script that tells none."""
    sequence: Annotated[int, Bounds(-1, 1 << 53)] = -1
    """Collectives begun in the default group; -1 where that is not known."""
    waits_in: Annotated[str, Bounds(0, 1000)] = ""
    """The collective that it has begun and not ended; empty for none, or where torch does not tell."""
    collectives: Annotated[tuple[Annotated[str, Bounds(0, 1000)], ...], Bounds(0, 256)] = ()
    """The last ones that it has begun in the default group, the latest last."""
    positions: Annotated[tuple[GroupPosition, ...], Bounds(0, MOST_GROUPS)] = ()
    """In process groups that have collectives on record."""
    place: Annotated[str, Bounds(0, 1000)] = ""
    """The line of the user's code that the main thread is at."""
    stack: Annotated[str, Bounds(0, 16_000)] = ""
    """Of the main thread."""

    def is_overdue(self, part: float) -> bool:
        """Whether it has stayed for longer than this part of its limit."""
        return self.limit is not None and self.seconds > part * self.limit


def is_long(look: Look) -> bool:
    """Whether the launcher reports this rank if other ranks wait for it."""
    return look.is_overdue(WARNING) or (look.notice is not None and look.seconds > look.notice)


def look_of(told: Mapping[str, Any]) -> Look:
    """A look out of what an agent of perhaps another version has written: what is not known here is left out.

    Raises ValueError where something is missing or of another kind.
    """
    try:
        known = {field.name: told[field.name] for field in fields(Look) if field.name in told}
        limit = known.get("limit")
        return Look(
            **known
            | {"state": RankState(known["state"]), "collectives": tuple(map(str, known.get("collectives", ())))}
            | {name: int(known[name]) for name in ("rank", "local_rank", "sequence") if name in known}
            | {"seconds": float(known["seconds"]), "limit": None if limit is None else float(limit)}
            | {"notice": None if known.get("notice") is None else float(known["notice"])}
            | {"positions": tuple(_position_of(each) for each in known.get("positions", ()))}
            | {name: str(known[name]) for name in ("node", "section", "waits_in", "place", "stack") if name in known}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no look at a rank: {error!r}") from error


def _position_of(told: Mapping[str, Any]) -> GroupPosition:
    numbers = {name: int(told.get(name, -1)) for name in ("enqueued", "started", "completed")}
    return GroupPosition(group=str(told["group"]), **numbers)
