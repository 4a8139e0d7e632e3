"""State of one local rank, from its heartbeat page and from ``/proc``. :class:`RankWatch` is used by the watchdog and
by the snapshots of :mod:`ddp_trainer.launch.hang.rank_snapshot`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import mmap
import os
import re
from collections import deque
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.hanging import INIT_SECONDS, MOST_RANKS, RankState, RankStatus, Stage
from ddp_trainer.common.time_classes import Section
from ddp_trainer.launch.rendezvous.hang_limits import NOTICE_SECONDS, StepTimeHistory
from ddp_trainer.process import heartbeat_page
from ddp_trainer.process.process_tree import children_of, handles_signal, stat_of, status_of

SECTIONS: Final = ("", *Section)
"""Section names, indexed by the number that a rank writes to its heartbeat page."""

DEAF_SECONDS: Final = 1.0
"""Minimum seconds without a heartbeat after which a rank without progress counts as deaf. Heartbeats are due every
0.25 s.
"""

MOST_STACK_CHARACTERS: Final = 4000
ACTIVITY_SECONDS: Final = 10.0
BUSY_SHARE: Final = 0.005
"""Share of one processor above which a process works. A loop that polls for a file ten times a second takes 0.05 %."""
LEAST_BYTES_PER_SECOND: Final = 16 * 1024
"""Data above which a process works. A log with ten lines a second has 2 KiB/s."""
TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
DUMP_SECONDS: Final = 0.3
"""Seconds from the stack signal to the read of the stacks."""
_FRAME: Final = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_OF_LIBRARIES: Final = re.compile(r"site-packages|dist-packages|/lib/python3|^<|/ddp_trainer/launch/")
MOST_SHAPE_CHARACTERS: Final = 160
"""Limit for one collective. Those over lists of tensors have many shapes, and a protocol line has a maximum length."""


@dataclass(slots=True)
class Activity:
    """Processor time and data of a process and its children, to tell work from a wait."""

    _samples: deque[tuple[float, int, int]] = field(default_factory=deque)
    is_computing: bool = False
    """True if it has computed in the last seconds, or waits for a disk. Polling for a lock takes next to no time."""
    is_moving_data: bool = False
    """True if it has read, written or received data in the last seconds: a download may take next to no time."""

    def update(self, pid: int, now: float) -> None:
        """Look at a process and its children, such as a program that downloads."""
        pids = [pid, *children_of(pid)]
        used = [cpu_ticks(process) for process in pids]
        self._samples.append((now, sum(ticks for _, ticks in used), sum(map(moved_bytes, pids))))
        while now - self._samples[0][0] > ACTIVITY_SECONDS and now - self._samples[1][0] >= ACTIVITY_SECONDS:
            self._samples.popleft()
        (since, *before), (_, *after) = self._samples[0], self._samples[-1]
        ticks, moved = (new - old for new, old in zip(after, before, strict=True))
        seconds = max(now - since, ACTIVITY_SECONDS / 2)
        self.is_computing = used[0][0] == "D" or ticks / TICKS_PER_SECOND / seconds > BUSY_SHARE
        self.is_moving_data = moved / seconds > LEAST_BYTES_PER_SECOND


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
    _activity: Activity = field(default_factory=Activity)

    def observe(self, now: float) -> RankStatus:
        """Return the current state of the rank, from sources that cost the worker nothing.

        Args:
            now: Monotonic time in seconds.
        """
        cells = self.cells
        if not (self.is_in_group or cells[heartbeat_page.LARGEST_GROUP] or cells[heartbeat_page.SECTION]):
            state = self._state(now, 0.0)
            if state is RankState.ALIVE:
                return self._observe_start(now)
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
        is_starting = self.is_in_group and not section and not self.pace.is_warmup_done
        if is_starting:
            self._activity.update(self.pid, now)
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
            is_busy=is_starting and self._activity.is_moving_data,
        )

    def _observe_start(self, now: float) -> RankStatus:
        """Return the state of a rank that has not had a group yet."""
        since = self.cells[heartbeat_page.INIT_SINCE]
        self._activity.update(self.pid, now)
        stage = Stage.INIT if since else Stage.APART
        return RankStatus(
            rank=self.rank,
            local_rank=self.local_rank,
            node=self.node,
            state=RankState.ALIVE,
            seconds=round(now - (since or self.moved_at), 3),
            limit=None,
            notice=min(INIT_SECONDS, self.pace.policy.floor or INIT_SECONDS) if since else None,
            waits_in="init_process_group" if since else "",
            stage=stage,
            world=min(MOST_RANKS, max(0, int(self.cells[heartbeat_page.WANTED]))),
            is_busy=self._activity.is_computing or self._activity.is_moving_data,
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
        self.cells[heartbeat_page.REQUESTED] += 1.0

    @property
    def has_responded(self) -> bool:
        """True if the worker has answered the last request."""
        return self.is_in_group and self.cells[heartbeat_page.ANSWERED] == self.cells[heartbeat_page.REQUESTED]

    def is_response_pending(self, now: float) -> bool:
        """Return whether an answer to the last request is missing and can still come."""
        can = self.is_in_group and now - self.cells[heartbeat_page.BEAT] < DEAF_SECONDS
        return can and not self.has_responded

    def observe_with_response(self, now: float) -> RankStatus:
        """Return :meth:`observe` with the worker's answer, if there is one."""
        status = self.observe(now)
        return with_response(status, self.folder / "answer.json") if self.has_responded else status

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

    async def observe_from_signal(self, now: float) -> RankStatus:
        """Return :meth:`observe` of a rank without a group, with the stack that it writes on a signal.

        A signal does not end a wait of Python's own functions.
        """
        status = self.observe(now)
        file = Path(f"{self.page}{heartbeat_page.STACKS_BEFORE}")
        number = self.stack_dump_signal()
        if not status.stage or not number or status.state is not RankState.ALIVE:
            return status
        before = len(_text_in(file))
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, number)
        await asyncio.sleep(DUMP_SECONDS)
        stack = _text_in(file)[before:]
        return replace(status, stack=stack[-MOST_STACK_CHARACTERS:], place=place_of_dump(stack)[:200])

    def stack_dump_signal(self) -> int:
        """Return the signal at which the worker writes its stacks, if it still handles this signal; else 0."""
        number = int(self.cells[heartbeat_page.SIGNAL])
        return number if number and handles_signal(self.pid, number) else 0


def with_response(status: RankStatus, path: Path) -> RankStatus:
    """Return the state with the worker's answer added; unchanged if the answer cannot be read."""
    try:
        answer: dict[str, Any] = json.loads(path.read_text())
        recorded = [
            (group, f"{name}{sizes}"[:MOST_SHAPE_CHARACTERS], over)
            for group, _, name, sizes, over in answer["collectives"]
        ]
        begun = [what for group, what, _ in recorded if group == "0"]
        # A GPU runs collectives in order: the rank waits in the oldest one that is not over.
        waits_in = next((what for _, what, over in recorded if not over), "")
        return replace(
            status,
            place=str(answer["place"])[:200],
            stack=str(answer["stack"])[-MOST_STACK_CHARACTERS:],
            collectives=tuple(begun),
            waits_in=waits_in,
        )
    except (OSError, ValueError, KeyError, TypeError):
        return status


def _text_in(file: Path) -> str:
    """Return the text of a file; empty if it cannot be read."""
    try:
        return file.read_text(errors="replace")
    except OSError:
        return ""


def place_of_dump(stack: str) -> str:
    r"""Return the innermost line outside of libraries in stacks of ``faulthandler``, as ``train.py:41 in step``.

    >>> dump = '  File "/usr/lib/python3.11/socket.py", line 7 in read\n  File "/x/train.py", line 6 in load'
    >>> place_of_dump(dump)
    'train.py:6 in load'
    """
    frames = _FRAME.findall(stack.partition("Current thread")[2] or stack)
    own = [frame for frame in frames if not _OF_LIBRARIES.search(frame[0])]
    path, line, name = (own or frames or [("", "", "")])[0]
    return f"{Path(path).name}:{line} in {name}" if path else ""


def cpu_ticks(pid: int) -> tuple[str, int]:
    """Return the state of a process, and the clock ticks that it and its ended children have computed."""
    try:
        fields = stat_of(pid)
    except OSError:
        return "", 0
    return fields[0], sum(map(int, fields[11:15]))


def moved_bytes(pid: int) -> int:
    """Return the bytes that a process has read and written, and those of the memory that it has begun to use.

    Linux does not count what is received from a socket, but a process that keeps it needs memory for it.
    """
    try:
        counts = dict(line.split(":") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
        return int(counts["rchar"]) + int(counts["wchar"]) + int(stat_of(pid)[7]) * mmap.PAGESIZE
    except (OSError, ValueError, KeyError, IndexError):
        return 0


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
