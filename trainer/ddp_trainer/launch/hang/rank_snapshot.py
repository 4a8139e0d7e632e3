"""How the ranks of one agent look when somebody asks, with all that can be had of those that cannot speak.

Nothing is done to a rank here: no signal, since one ends a sleep in C and with it perhaps the hang, and no stop.
:func:`sights` gets stacks, which costs each rank some work. :class:`RankOutlines` reads shared memory, and torch's own
record of ranks that do not move, at a bounded rate: it may be offered to readers of metrics.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

from ddp_trainer.common.hanging.look import MOST_GROUPS, GroupPosition, Look, RankState
from ddp_trainer.launch.hang.rank_monitor import MOST_STACK_CHARACTERS, RankWatch, kernel_stack
from ddp_trainer.process import flight_recorder

ANSWER_SECONDS: Final = 1.5
"""A worker that can answers within a quarter of a second, and a loaded machine is slow."""
POLL_SECONDS: Final = 0.02
RECORDER_SECONDS: Final = 0.5
PY_SPY_SECONDS: Final = 2.0
STILL_SECONDS: Final = 2.5
"""An outline reads torch's record of a rank that has not moved for so long."""
RECORD_SECONDS: Final = 5.0
"""Seconds between two reads of one rank's record for outlines; a read takes a thread of the rank some 30 ms."""


RECORD_FILE: Final = "flight_recorder.json"
"""In the folder of a rank's attempt."""


class StackSource(StrEnum):
    """Where a stack comes from."""

    PYTHON = "python"
    """The rank's own thread."""
    PY_SPY = "py-spy"
    KERNEL = "/proc"
    """What the kernel says of the process, for want of a stack."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankSnapshot:
    """One rank, as somebody is shown it."""

    look: Look
    pid: int
    usual: float | None
    """Seconds of its longest recent stay in such a place; None where nothing has been learned."""
    told_by: StackSource

    def plain(self) -> dict[str, Any]:
        """As JSON has it."""
        return {**asdict(self.look), "pid": self.pid, "usual": self.usual, "stack_from": str(self.told_by)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """One rank without stacks, lines of code, processes and addresses."""

    look: Look
    usual: float | None
    """As :attr:`RankSnapshot.usual`."""

    def plain(self) -> dict[str, Any]:
        """Return the fields for JSON; a subset of those of :meth:`RankSnapshot.plain`."""
        told = {name: value for name, value in asdict(self.look).items() if name not in _PRIVATE}
        return {**told, "usual": self.usual}


_PRIVATE: Final = frozenset({"place", "stack"})


@dataclass(slots=True)
class RankOutlines:
    """Outlines of ranks; remembers their records between two looks."""

    _read: dict[int, tuple[RankWatch, float, Look]] = field(default_factory=dict)
    """Local rank → the watch, when its record was read, and the look with what the record has."""

    async def of(self, watches: Sequence[RankWatch]) -> list[Outline]:
        """Return an outline of every rank. No worker has to do anything in Python for it."""
        now = time.monotonic()
        looks = await asyncio.gather(*(self._look(watch, now) for watch in watches))
        return [
            Outline(look=look, usual=watch.pace.longest(look.section))
            for watch, look in zip(watches, looks, strict=True)
        ]

    async def _look(self, watch: RankWatch, now: float) -> Look:
        look = watch.observe(now)
        if not watch.is_in_group or look.seconds < STILL_SECONDS:
            return look
        known, read_at, with_record = self._read.get(watch.local_rank, (None, 0.0, look))
        if known is not watch or read_at < watch.moved_at or now - read_at >= RECORD_SECONDS:
            with_record = await asyncio.to_thread(recorded_by_torch, watch, look)
            self._read[watch.local_rank] = (watch, now, with_record)
        return replace(
            look,
            sequence=max(look.sequence, with_record.sequence),
            collectives=with_record.collectives,
            waits_in=with_record.waits_in,
            positions=with_record.positions,
        )


async def answers(watches: Sequence[RankWatch]) -> list[Look]:
    """Ask each worker where it is, and wait for those that can say."""
    for watch in watches:
        watch.ask()
    now = time.monotonic()
    deadline = now + ANSWER_SECONDS
    # Workers answer in shared memory, which wakes nobody.
    while now < deadline and any(watch.may_answer(now) for watch in watches):
        await asyncio.sleep(POLL_SECONDS)
        now = time.monotonic()
    looks = [watch.examine(now) for watch in watches]
    return list(await asyncio.gather(*(_with_record(watch, look) for watch, look in zip(watches, looks, strict=True))))


async def _with_record(watch: RankWatch, look: Look) -> Look:
    """Return the look with its positions in groups; of a rank whose Python gets no turn with its collectives, too."""
    recorded = await asyncio.to_thread(recorded_by_torch, watch, look)
    return replace(look, positions=recorded.positions) if look.stack else recorded


async def sights(watches: Sequence[RankWatch]) -> list[RankSnapshot]:
    """All of them, and of those that do not answer what others say: torch's threads, py-spy, the kernel."""
    looks = await answers(watches)
    return list(await asyncio.gather(*(_sight(watch, look) for watch, look in zip(watches, looks, strict=True))))


async def _sight(watch: RankWatch, look: Look) -> RankSnapshot:
    usual = watch.pace.longest(look.section)
    if look.state is RankState.ALIVE and look.stack:
        return RankSnapshot(look=look, pid=watch.pid, usual=usual, told_by=StackSource.PYTHON)
    spied = await asyncio.to_thread(stack_by_py_spy, watch.pid)
    teller, stack = (StackSource.PY_SPY, spied) if spied else (StackSource.KERNEL, kernel_stack(watch.pid))
    look = replace(look, stack=stack[-MOST_STACK_CHARACTERS:])
    return RankSnapshot(look=look, pid=watch.pid, usual=usual, told_by=teller)


def recorded_by_torch(watch: RankWatch, look: Look) -> Look:
    """The look, with what threads of torch's tell while Python cannot: which collective it is in."""
    try:
        record = flight_recorder.ask(flight_recorder.socket_beside(watch.page), RECORDER_SECONDS)
    except flight_recorder.Silent:
        return look
    here = record.groups.get(flight_recorder.DEFAULT)
    return replace(
        look,
        sequence=look.sequence if here is None or look.sequence < 0 else max(look.sequence, here.enqueued),
        collectives=record.collectives[-flight_recorder.MOST_TOLD :],
        waits_in=record.waits_in,
        positions=_positions(record),
    )


def _positions(record: flight_recorder.Record) -> tuple[GroupPosition, ...]:
    """By torch's names of groups, which are the same on all ranks; a group without one cannot be compared."""
    named = [
        ("" if name == flight_recorder.DEFAULT else place.name, name, place) for name, place in record.groups.items()
    ]
    known = [(group, place) for group, name, place in named if group or name == flight_recorder.DEFAULT]
    return tuple(
        GroupPosition(group=group, enqueued=place.enqueued, started=place.started, completed=place.completed)
        for group, place in known[:MOST_GROUPS]
    )


def write_record(watch: RankWatch) -> None:
    """Write torch's record of a rank to its folder, in place of the one before; nothing where there is none.

    torch writes a file by itself only for the first NCCL group of a process, and only with its watchdog on.
    """
    with contextlib.suppress(flight_recorder.Silent, OSError):
        if record := flight_recorder.dump(flight_recorder.socket_beside(watch.page), RECORDER_SECONDS):
            (watch.folder / RECORD_FILE).write_text(json.dumps(record))


def stack_by_py_spy(pid: int) -> str:
    """Python's stack as py-spy reads it from outside; empty where it is not installed, or may not."""
    program = shutil.which("py-spy")
    if program is None:
        return ""
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        # Its code is not looked at: the agent reaps all of its children, this one too.
        done = subprocess.run(command, capture_output=True, text=True, timeout=PY_SPY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if "Thread" in done.stdout else ""
