"""State of a rank as its agent reports it to the store: position, time since the last progress, and current wait.

:class:`RankStatus` is one rank's state and :func:`parse_rank_status` reads it from a report.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, Final

from ddp_trainer.common.bounds import Bounds

MOST_RANKS: Final = 1 << 22
MOST_GROUPS: Final = 16
"""Most process groups for which a rank reports its position."""
WARNING: Final = 0.5
"""Fraction of a time limit after which a rank is reported. At the limit, the launcher acts."""


class RankState(StrEnum):
    """State of a worker process, from the kernel and from the worker's heartbeat thread."""

    ALIVE = "alive"
    STOPPED = "stopped"
    """Stopped by SIGSTOP or a terminal. It does not resume without a signal."""
    TRACED = "traced"
    """Held by a debugger; the launcher must not interfere."""
    DEAF = "deaf"
    """No Python thread has run for a long time: something holds the GIL."""


class Stage(StrEnum):
    """Stage of a worker before it has its first default process group."""

    APART = "apart"
    """It has not begun to make the group: it imports, reads, or waits for something else."""
    MEETING = "meeting"
    """It waits in ``init_process_group`` for its peers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPosition:
    """Collective counts of one rank in one process group, from torch's flight recorder; -1 where it has none.

    On a GPU, the host enqueues a collective, its kernel starts it, and the end of the kernel completes it.
    """

    group: Annotated[str, Bounds(0, 200)]
    """torch's name of the group, the same on all its ranks; empty for the default group."""
    enqueued: Annotated[int, Bounds(-1, 1 << 53)]
    started: Annotated[int, Bounds(-1, 1 << 53)] = -1
    """Available only with ``TORCH_NCCL_ENABLE_TIMING=1``."""
    completed: Annotated[int, Bounds(-1, 1 << 53)] = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """State of one rank at one moment."""

    rank: Annotated[int, Bounds(0, MOST_RANKS)]
    local_rank: Annotated[int, Bounds(0, MOST_RANKS)]
    node: Annotated[str, Bounds(0, 253)]
    state: RankState
    seconds: Annotated[float, Bounds(-3600, 1e12)]
    """Time since the rank's last observed progress, in seconds."""
    limit: Annotated[float | None, Bounds(0, 1e12)]
    """Longest time in seconds that the rank may stay where it is; None for no limit."""
    notice: Annotated[float | None, Bounds(0, 1e12)] = None
    """Seconds after which the rank is reported if others wait for it; None for never, or for half of the limit."""
    section: Annotated[str, Bounds(0, 64)] = ""
    """Section that the rank has marked; empty for a script that marks none."""
    sequence: Annotated[int, Bounds(-1, 1 << 53)] = -1
    """Number of collectives begun in the default group; -1 where it is not known."""
    waits_in: Annotated[str, Bounds(0, 1000)] = ""
    """Collective that the rank has begun and not ended; empty for none, or where torch does not report it."""
    collectives: Annotated[tuple[Annotated[str, Bounds(0, 1000)], ...], Bounds(0, 256)] = ()
    """Last collectives begun in the default group, the latest last."""
    positions: Annotated[tuple[GroupPosition, ...], Bounds(0, MOST_GROUPS)] = ()
    """Positions in the process groups that have recorded collectives."""
    stage: Annotated[str, Bounds(0, 16)] = ""
    """A :class:`Stage`; empty once the rank has had a group."""
    world: Annotated[int, Bounds(0, MOST_RANKS)] = 0
    """World size that a rank in ``init_process_group`` waits for; 0 where it is not known."""
    is_busy: bool = False
    """The process works although it is in no group yet, or moves data before its first steps: it makes progress."""
    place: Annotated[str, Bounds(0, 1000)] = ""
    """Line of the user's code that the main thread executes."""
    stack: Annotated[str, Bounds(0, 16_000)] = ""
    """Stack of the main thread."""

    def has_exceeded_limit(self, part: float) -> bool:
        """Return whether the rank has made no progress for longer than this fraction of its limit."""
        return self.limit is not None and self.seconds > part * self.limit


def is_long(look: RankStatus) -> bool:
    """Return whether the launcher reports this rank if other ranks wait for it."""
    return look.has_exceeded_limit(WARNING) or (look.notice is not None and look.seconds > look.notice)


def parse_rank_status(told: Mapping[str, Any]) -> RankStatus:
    """Return the look in an agent's report. Unknown fields, as of an agent of another version, are ignored.

    Raises:
        ValueError: If a field is missing or has the wrong type.
    """
    try:
        known = {field.name: told[field.name] for field in fields(RankStatus) if field.name in told}
        limit = known.get("limit")
        return RankStatus(
            **known
            | {"state": RankState(known["state"]), "collectives": tuple(map(str, known.get("collectives", ())))}
            | {name: int(known[name]) for name in ("rank", "local_rank", "sequence", "world") if name in known}
            | {"seconds": float(known["seconds"]), "limit": None if limit is None else float(limit)}
            | {"notice": None if known.get("notice") is None else float(known["notice"])}
            | {"positions": tuple(_position_of(each) for each in known.get("positions", ()))}
            | {
                name: str(known[name])
                for name in ("node", "section", "waits_in", "stage", "place", "stack")
                if name in known
            }
            | {"is_busy": bool(known.get("is_busy", False))}
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no look at a rank: {error!r}") from error


def _position_of(told: Mapping[str, Any]) -> GroupPosition:
    numbers = {name: int(told.get(name, -1)) for name in ("enqueued", "started", "completed")}
    return GroupPosition(group=str(told["group"]), **numbers)
