"""State of one local rank, from its heartbeat page and from ``/proc``. :class:`RankWatch` is used by the watchdog and
by the snapshots of :mod:`ddp_trainer.launch.hang.rank_snapshot`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.hanging.rank_status import RankState, RankStatus
from ddp_trainer.common.time_classes import Section
from ddp_trainer.launch.rendezvous.hang_limits import NOTICE_SECONDS, StepTimeHistory
from ddp_trainer.process import heartbeat_page
from ddp_trainer.process.process_tree import handles_signal, status_of

SECTIONS: Final = ("", *Section)
"""Section names, indexed by the number that a rank writes to its heartbeat page."""

DEAF_SECONDS: Final = 1.0
"""Minimum seconds without a heartbeat after which a rank without progress counts as deaf. Heartbeats are due every
0.25 s.
"""

MOST_STACK_CHARACTERS: Final = 4000
MOST_SHAPE_CHARACTERS: Final = 160
"""Limit for one collective. Those over lists of tensors have many shapes, and a protocol line has a maximum length."""


@dataclass(slots=True)
class RankWatch:
    """Observation of one local rank in one generation."""

    rank: int
    local_rank: int
    node: str
    pid: int
    page: Path
    """Path of its heartbeat page."""
    cells: memoryview[float]
    folder: Path
    """Folder in which the worker writes its answers."""
    pace: StepTimeHistory
    moved_at: float
    _position: tuple[float, ...] = ()
    _section: str = ""
    _may_hang: bool = False

    def observe(self, now: float) -> RankStatus:
        """Return the current state of the rank, from sources that cost the worker nothing.

        Args:
            now: Monotonic time in seconds.
        """
        cells = self.cells
        number = cells[heartbeat_page.SECTION]
        section = SECTIONS[int(number)] if 0 <= number < len(SECTIONS) else ""
        position = (number, cells[heartbeat_page.SINCE], cells[heartbeat_page.TOTAL], cells[heartbeat_page.HAS_GROUP])
        if position != self._position:
            if self._may_hang:  # else the stay was a wait for peers, or imports
                self.pace.moved(self._section, now - self.moved_at)
            self._position, self._section, self.moved_at = position, section, now
            self._may_hang = bool(section) or (self.is_in_group and cells[heartbeat_page.TOTAL] > 0)
        seconds = now - self.moved_at
        state = self._state(now, seconds)
        is_stopped = state is RankState.STOPPED  # so it is not busy with imports or other work
        limit = self.pace.limit(section, is_stopped=is_stopped) if self._may_hang or is_stopped else None
        return RankStatus(
            rank=self.rank,
            local_rank=self.local_rank,
            node=self.node,
            state=state,
            seconds=round(seconds, 3),
            limit=limit,
            notice=self._report_delay(section),
            section=section,
            sequence=int(cells[heartbeat_page.SEQUENCE]) if self.is_in_group else -1,
        )

    @property
    def is_in_group(self) -> bool:
        """True while the worker has a process group of more than one rank."""
        return bool(self.cells[heartbeat_page.HAS_GROUP])

    def _report_delay(self, section: str) -> float | None:
        """Return the seconds until the rank is reported. Before its first collective, a script may load for any
        time.
        """
        if self._may_hang:
            return self.pace.report_after_seconds(section)
        return NOTICE_SECONDS if self.is_in_group else None

    def request_stacks(self) -> None:
        """Request the worker's thread to write its stacks and collectives."""
        self.cells[heartbeat_page.ASKED] += 1.0

    @property
    def has_responded(self) -> bool:
        """True if the worker has answered the last request."""
        return self.is_in_group and self.cells[heartbeat_page.ANSWERED] == self.cells[heartbeat_page.ASKED]

    def is_response_pending(self, now: float) -> bool:
        """Return whether an answer to the last request is missing and can still come."""
        can = self.is_in_group and now - self.cells[heartbeat_page.BEAT] < DEAF_SECONDS
        return can and not self.has_responded

    def observe_with_response(self, now: float) -> RankStatus:
        """Return :meth:`observe` with the worker's answer, if there is one."""
        look = self.observe(now)
        return with_response(look, self.folder / "answer.json") if self.has_responded else look

    def _state(self, now: float, seconds: float) -> RankState:
        status = status_of(self.pid)
        state = status.get("State", "")[:1]
        if state == "t" or int(status.get("TracerPid", "0")):
            return RankState.TRACED
        if state == "T":
            return RankState.STOPPED
        silence = now - self.cells[heartbeat_page.BEAT]
        if self.is_in_group and silence > max(DEAF_SECONDS, seconds / 2):
            return RankState.DEAF
        return RankState.ALIVE

    def stack_dump_signal(self) -> int:
        """Return the signal at which the worker writes its stacks, if it still handles this signal; else 0."""
        number = int(self.cells[heartbeat_page.SIGNAL])
        return number if number and handles_signal(self.pid, number) else 0


def with_response(look: RankStatus, path: Path) -> RankStatus:
    """Return the look with the worker's answer added; unchanged if the answer cannot be read."""
    try:
        answer: dict[str, Any] = json.loads(path.read_text())
        told = [
            (group, f"{name}{sizes}"[:MOST_SHAPE_CHARACTERS], over)
            for group, _, name, sizes, over in answer["collectives"]
        ]
        begun = [what for group, what, _ in told if group == "0"]
        # A GPU runs collectives in order: the rank waits in the oldest one that is not over.
        waits_in = next((what for _, what, over in told if not over), "")
        return replace(
            look,
            place=str(answer["place"])[:200],
            stack=str(answer["stack"])[-MOST_STACK_CHARACTERS:],
            collectives=tuple(begun),
            waits_in=waits_in,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return look


def kernel_stack(pid: int) -> str:
    """Return status, wait channel, system call and kernel stack of a process from ``/proc``, as far as they are
    readable.
    """
    parts = []
    for name in ("status", "wchan", "syscall", "stack"):
        try:
            text = Path(f"/proc/{pid}/{name}").read_text(errors="replace")
        except OSError:
            continue  # only root can read the stack
        lines = [line for line in text.splitlines() if name != "status" or line.startswith(("Name", "State", "Tracer"))]
        parts.append(f"/proc/{pid}/{name}: " + "; ".join(lines))
    return "\n".join(parts)
