"""The directory of a pod's boards: how they are named, and which of them speak for the ranks of now."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import MetricLabel
from ddp_trainer.metrics.storage.mmap_store import AGENT, RANK, Snapshot, StaleBoard, read
from ddp_trainer.metrics.storage.process import Vitals, vitals

LOCAL_WORLD_SIZE: Final = "local_world_size"
"""Key in a rank's identity: how many ranks its pod has."""

_RANK_BOARD: Final = re.compile(r"rank-\d{1,6}\.board")


def rank_board(directory: Path, local_rank: int) -> Path:
    """Where the board of a local rank is."""
    return directory / f"rank-{local_rank}.board"


def agent_board(directory: Path) -> Path:
    """Where the launcher's board is."""
    return directory / "agent.board"


@dataclass(frozen=True, slots=True)
class Slot:
    """A board together with what ``/proc`` says about its process."""

    board: Snapshot
    vitals: Vitals | None
    """None where the process has ended."""

    @property
    def rank(self) -> int:
        """Global rank; -1 where none was told."""
        return int(self.board.identity.get(MetricLabel.RANK, -1))

    @property
    def local_rank(self) -> int:
        """Rank within the pod."""
        return int(self.board.identity.get(MetricLabel.LOCAL_RANK, -1))

    @property
    def local_world_size(self) -> int:
        """How many ranks its pod had when it started."""
        return int(self.board.identity.get(LOCAL_WORLD_SIZE, 0))


@dataclass(frozen=True, slots=True)
class Survey:
    """All boards of a pod at one moment."""

    agent: Slot | None
    ranks: tuple[Slot, ...]
    """One per rank, in order of local rank."""
    stale: tuple[tuple[Path, Exception], ...]
    """Boards that could not be understood, and why."""


def survey(directory: Path) -> Survey:
    """Read every board; a missing or unreadable directory has none."""
    stale: list[tuple[Path, Exception]] = []
    agent: Slot | None = None
    slots: list[Slot] = []
    for path in _boards(directory):
        is_agent = path == agent_board(directory)
        try:
            board = read(path, AGENT if is_agent else RANK)
            slot = Slot(board, vitals(board.owner))
            known = is_agent or (slot.rank >= 0 and slot.local_rank >= 0 and slot.local_world_size > 0)
        except FileNotFoundError:
            continue
        except (StaleBoard, OSError, ValueError, TypeError) as error:
            stale.append((path, error))
            continue
        if is_agent:
            agent = slot
        elif known:
            slots.append(slot)
    return Survey(agent, current(slots), tuple(stale))


def current(slots: Iterable[Slot]) -> tuple[Slot, ...]:
    """The slots that speak for the ranks of now.

    The newest process knows how many ranks its pod has: slots beyond that are left over from a larger pod. Where two
    slots claim one rank, the newer process has it, and the older one was re-ranked or is gone.
    """
    newest_first = sorted(slots, key=lambda slot: (slot.vitals is not None, slot.board.owner.start), reverse=True)
    taken: dict[int, Slot] = {}
    for slot in newest_first:
        if slot.local_rank < newest_first[0].local_world_size:
            taken.setdefault(slot.rank, slot)
    return tuple(sorted(taken.values(), key=lambda slot: slot.local_rank))


def rank_boards(directory: Path) -> Iterator[Path]:
    """Where boards of ranks are; none in a directory that is missing or cannot be read."""
    return (path for path in _boards(directory) if path != agent_board(directory))


def _boards(directory: Path) -> Iterator[Path]:
    try:
        paths = sorted(directory.iterdir())
    except OSError:
        return
    yield from (path for path in paths if _RANK_BOARD.fullmatch(path.name) or path == agent_board(directory))
