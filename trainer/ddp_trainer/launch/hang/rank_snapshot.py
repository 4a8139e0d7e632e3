"""Snapshots of the ranks of one agent, also of ranks that cannot answer.

No snapshot sends a signal to a rank or stops it: a signal ends a sleep in C and could end the hang.
:func:`take_snapshots` returns stacks, which costs each rank some work. :class:`RankSummaryReader` reads shared memory,
and at a bounded rate torch's flight recorder of ranks without progress. So it can serve readers of metrics.
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

from ddp_trainer.common.hanging import MOST_GROUPS, GroupPosition, RankState, RankStatus
from ddp_trainer.launch.hang.rank_monitor import MOST_STACK_CHARACTERS, RankWatch, kernel_stack
from ddp_trainer.process import flight_recorder

ANSWER_SECONDS: Final = 1.5
"""Limit of the wait for answers. A worker answers within 0.25 s, or later on a loaded machine."""
POLL_SECONDS: Final = 0.02
RECORDER_SECONDS: Final = 0.5
PY_SPY_SECONDS: Final = 2.0
STILL_SECONDS: Final = 2.5
"""Seconds without progress after which an outline reads the flight recorder of a rank."""
RECORD_SECONDS: Final = 5.0
"""Seconds between two reads of one rank's flight recorder for outlines. A read takes a thread of the rank for about
30 ms.
"""


RECORD_FILE: Final = "flight_recorder.json"
"""File name in the folder of a rank's attempt."""


class StackSource(StrEnum):
    """Source of a stack."""

    PYTHON = "python"
    """The rank's own thread."""
    PY_SPY = "py-spy"
    KERNEL = "/proc"
    """State of the process in ``/proc``, if no stack can be read."""


def snapshot_fields(status: RankStatus, pid: int, usual: float | None, source: StackSource) -> dict[str, Any]:
    """Return the state of one rank with stack and process id, for JSON.

    Args:
        status: State of the rank, with its stack.
        pid: Its process id.
        usual: Seconds of its longest recent stay in the same section; None if nothing has been learned.
        source: Source of the stack.
    """
    return {**asdict(status), "pid": pid, "usual": usual, "stack_from": str(source)}


def summary_fields(status: RankStatus, usual: float | None) -> dict[str, Any]:
    """Return the state of one rank without stack, line of code and process id; a subset of :func:`snapshot_fields`."""
    return {**{name: value for name, value in asdict(status).items() if name not in _PRIVATE}, "usual": usual}


_PRIVATE: Final = frozenset({"place", "stack"})


@dataclass(slots=True)
class RankSummaryReader:
    """Outlines of the local ranks. Keeps their flight recorder positions between two calls."""

    _read: dict[int, tuple[RankWatch, float, RankStatus]] = field(default_factory=dict)
    """Local rank → watch, monotonic time at which its flight recorder was read, and the state with its contents."""

    async def of(self, watches: Sequence[RankWatch]) -> list[dict[str, Any]]:
        """Return an outline of every rank, without any work for Python in the workers."""
        now = time.monotonic()
        statuses = await asyncio.gather(*(self._read_status(watch, now) for watch in watches))
        return [
            summary_fields(status, watch.pace.longest(status.section))
            for watch, status in zip(watches, statuses, strict=True)
        ]

    async def _read_status(self, watch: RankWatch, now: float) -> RankStatus:
        status = watch.observe(now)
        if not watch.is_in_group or status.seconds < STILL_SECONDS:
            return status
        known, read_at, with_record = self._read.get(watch.local_rank, (None, 0.0, status))
        if known is not watch or read_at < watch.moved_at or now - read_at >= RECORD_SECONDS:
            with_record = await asyncio.to_thread(recorded_by_torch, watch, status)
            self._read[watch.local_rank] = (watch, now, with_record)
        return replace(
            status,
            sequence=max(status.sequence, with_record.sequence),
            collectives=with_record.collectives,
            waits_in=with_record.waits_in,
            positions=with_record.positions,
        )


async def collect_snapshots(watches: Sequence[RankWatch]) -> list[RankStatus]:
    """Request an answer of each worker, and return their states with the answers that arrived in time."""
    for watch in watches:
        watch.request_stacks()
    now = time.monotonic()
    deadline = now + ANSWER_SECONDS
    # Poll: workers answer in shared memory, which sends no event.
    while now < deadline and any(watch.is_response_pending(now) for watch in watches):
        await asyncio.sleep(POLL_SECONDS)
        now = time.monotonic()
    statuses = [watch.observe_with_response(now) for watch in watches]
    from_signal = [
        watch.observe_from_signal(now) for watch, status in zip(watches, statuses, strict=True) if status.stage
    ]
    if from_signal:
        early = {status.rank: status for status in await asyncio.gather(*from_signal)}
        return [early.get(status.rank, status) for status in statuses]
    return list(
        await asyncio.gather(*(_with_record(watch, status) for watch, status in zip(watches, statuses, strict=True)))
    )


async def _with_record(watch: RankWatch, status: RankStatus) -> RankStatus:
    """Add its positions in groups to the state, and its collectives if its Python did not answer."""
    recorded = await asyncio.to_thread(recorded_by_torch, watch, status)
    return replace(status, positions=recorded.positions) if status.stack else recorded


async def take_snapshots(watches: Sequence[RankWatch]) -> list[dict[str, Any]]:
    """Return snapshots of all ranks. If a rank does not answer, its stack comes from py-spy or the kernel."""
    statuses = await collect_snapshots(watches)
    return list(
        await asyncio.gather(*(_take_snapshot(watch, status) for watch, status in zip(watches, statuses, strict=True)))
    )


async def _take_snapshot(watch: RankWatch, status: RankStatus) -> dict[str, Any]:
    usual = watch.pace.longest(status.section)
    if status.state is RankState.ALIVE and status.stack:
        return snapshot_fields(status, watch.pid, usual, StackSource.PYTHON)
    spied = await asyncio.to_thread(py_spy_stack, watch.pid)
    teller, stack = (StackSource.PY_SPY, spied) if spied else (StackSource.KERNEL, kernel_stack(watch.pid))
    return snapshot_fields(replace(status, stack=stack[-MOST_STACK_CHARACTERS:]), watch.pid, usual, teller)


def recorded_by_torch(watch: RankWatch, status: RankStatus) -> RankStatus:
    """Return the state with collectives and positions of torch's flight recorder, which answers even if Python
    cannot.
    """
    try:
        record = flight_recorder.fetch_record(flight_recorder.recorder_socket_path(watch.page), RECORDER_SECONDS)
    except flight_recorder.FlightRecorderError:
        return status
    here = record.groups.get(flight_recorder.DEFAULT)
    return replace(
        status,
        sequence=status.sequence if here is None or status.sequence < 0 else max(status.sequence, here.enqueued),
        collectives=record.collectives[-flight_recorder.MAX_COLLECTIVES :],
        waits_in=record.waits_in,
        positions=_group_positions(record),
    )


def _group_positions(record: flight_recorder.Record) -> tuple[GroupPosition, ...]:
    """Return positions by torch's group names, which are equal on all ranks. Unnamed groups cannot be compared."""
    named = [
        ("" if name == flight_recorder.DEFAULT else place.name, name, place) for name, place in record.groups.items()
    ]
    known = [(group, place) for group, name, place in named if group or name == flight_recorder.DEFAULT]
    return tuple(
        GroupPosition(group=group, enqueued=place.enqueued, started=place.started, completed=place.completed)
        for group, place in known[:MOST_GROUPS]
    )


def write_record(watch: RankWatch) -> None:
    """Replace the flight recorder file in a rank's folder; do nothing if the recorder does not answer.

    torch writes a file by itself only for the first NCCL group of a process, and only with its watchdog on.
    """
    with contextlib.suppress(flight_recorder.FlightRecorderError, OSError, ValueError, AttributeError):
        path = flight_recorder.recorder_socket_path(watch.page)
        documents = {
            name: json.loads(body) for name, body in flight_recorder.fetch_dumps(path, RECORDER_SECONDS).items()
        }
        if record := {name: document for name, document in documents.items() if document.get("entries")}:
            (watch.folder / RECORD_FILE).write_text(json.dumps(record))


def py_spy_stack(pid: int) -> str:
    """Return the Python stack that py-spy reads from outside; empty if py-spy is not installed or not permitted."""
    program = shutil.which("py-spy")
    if program is None:
        return ""
    command = [program, "dump", "--nonblocking", "--pid", str(pid)]
    try:
        # The exit code is unreliable: the agent's SIGCHLD handler may reap this child first.
        done = subprocess.run(command, capture_output=True, text=True, timeout=PY_SPY_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if "Thread" in done.stdout else ""
