"""Hang watchdog of one agent. :class:`HangGuard` looks at the local ranks, sends alarms and states to the store, and
carries out the store's decision: print, dump stacks, kill. It also provides the pages of
:mod:`ddp_trainer.launch.hang.status_socket`.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import time
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.constants import Exit, FailureReason
from ddp_trainer.common.hanging import RankState, RankStatus, is_long, waits_for
from ddp_trainer.common.safe_text import clean_text
from ddp_trainer.launch.hang import rank_snapshot
from ddp_trainer.launch.hang.nested_launcher import nested_launcher
from ddp_trainer.launch.hang.rank_monitor import DUMP_SECONDS, MOST_STACK_CHARACTERS, RankWatch, kernel_stack
from ddp_trainer.launch.hang.status_socket import FindingHistory, HangStatusServer
from ddp_trainer.launch.protocol import messages
from ddp_trainer.launch.protocol.generation import Assignment
from ddp_trainer.launch.rendezvous.hang_limits import PATIENT, HangPolicy, OnHang, StepTimeHistory
from ddp_trainer.process import heartbeat_page

LONGEST_ALARM_PAUSE: Final = 15.0
NO_RANK: Final = -1

LAUNCHER_SECONDS: Final = 5.0
"""Seconds from the start of workers until they are searched for launchers of their own."""
FIRST_STEP_SECONDS: Final = 30.0
"""Seconds that a worker may need to notice the end of its group while no step time is known, and the most in its first
steps.
"""
STEP_FACTOR: Final = 2.0
"""Once step times are known, a worker may need its longest step times this factor, and a worker in its first steps the
longest first step of earlier workers.
"""


@dataclass(slots=True, kw_only=True, eq=False)
class HangGuard:
    """Watchdog of the workers of one agent, from each start to their end. Belongs to the agent's event loop."""

    policy: HangPolicy
    """What to do about a hang, and after how long."""
    folder: Path
    """Folder of the heartbeat pages."""
    node: str
    """Name of this node."""
    send: Callable[[messages.FromAgent], None]
    """Sends a message to the store."""
    kill: Callable[[int], None]
    """Kills a local rank with its whole process group."""
    log: Callable[[str], None]
    """Prints a line."""
    stalled: Callable[[float, int], None] = lambda *_: None
    """Records the seconds without progress and the rank that others wait for, as
    :meth:`ddp_trainer.process.recorder.AgentRecorder.stalled`.
    """
    largest_groups: dict[int, int] = field(default_factory=dict)
    """Local rank → ranks of the largest default process group that its last ended worker had; 0 for none. Workers that
    have not imported torch.distributed are left out.
    """
    is_watching: bool = False
    """True from :meth:`begin` to :meth:`end`."""
    _waits_for: tuple[float, int] | None = None
    """Monotonic time of the store's last report, and the rank that it names, -1 for none; None while ranks make
    progress.
    """
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _generation: int = 0
    _findings: FindingHistory = field(default_factory=FindingHistory)
    _outlines: rank_snapshot.RankSummaryReader = field(default_factory=rank_snapshot.RankSummaryReader)
    _is_blind: bool = False
    """True after the message that workers run without a watchdog."""
    _watches: dict[int, RankWatch] = field(default_factory=dict)
    _leaving: dict[int, RankWatch] = field(default_factory=dict)
    """Watches of the last group until the next one begins, since its workers may still be busy."""
    _longest: dict[int, float] = field(default_factory=dict)
    """Process id → seconds of its longest step, for processes that have outlived a group."""
    _first: float | None = None
    """Seconds of the longest stay in the first steps of a group; None before any worker has finished them."""
    _condemned: dict[int, tuple[str, str]] = field(default_factory=dict)
    _timer: asyncio.TimerHandle | None = None
    _alarm_at: float = 0.0
    _find_launchers_at: float = math.inf
    """Monotonic time at which the workers are searched for launchers of their own."""
    _work: set[asyncio.Task[None]] = field(default_factory=set)

    def prepare(self, local_rank: int) -> str:
        """Create an empty heartbeat page for a worker that is about to start, and return its path; empty if it is not
        watched.
        """
        path = str(self.folder / f"rank-{local_rank}.page")
        if self.policy.on_hang is OnHang.OFF:
            return ""
        try:
            heartbeat_page.create(path)
        except OSError as error:
            if not self._is_blind:
                self._is_blind = True
                self.log(f"hang: {path} cannot be written ({error.strerror}), so hangs of a rank are not detected.")
            return ""
        return path

    def imports(self) -> Path | None:
        """Return a file with the names of the modules that a worker has imported; None if there is none."""
        left = sorted(self.folder.glob(f"rank-*.page{heartbeat_page.IMPORTS}"))
        return left[0] if left else None

    def begin(self, generation: Assignment, first_rank: int, pids: Mapping[int, int], folder: Path) -> None:
        """Start to watch the workers of a generation.

        Args:
            generation: Place of this node.
            first_rank: Global rank of local rank 0.
            pids: Local rank → process id.
            folder: Folder of the generation's files.
        """
        self.end()
        self.is_watching = True
        # The kernel may reuse the id of a process that has ended.
        self._longest = {pid: seconds for pid, seconds in self._longest.items() if pid in pids.values()}
        self._generation = generation.number
        self.stalled(0.0, NO_RANK)
        now = time.monotonic()
        for local_rank, pid in pids.items():
            with contextlib.suppress(OSError, ValueError):
                page = self.folder / f"rank-{local_rank}.page"
                self._watches[local_rank] = RankWatch(
                    rank=first_rank + local_rank,
                    local_rank=local_rank,
                    node=self.node,
                    pid=pid,
                    page=page,
                    cells=heartbeat_page.open_page(str(page)),
                    folder=folder / str(local_rank),
                    pace=StepTimeHistory(self.policy, first=self._first),
                    moved_at=now,
                )
        self._find_launchers_at = now + LAUNCHER_SECONDS if generation.world_size > 1 else math.inf
        if self.policy.on_hang is not OnHang.OFF:
            self._schedule_check()

    def end(self) -> None:
        """Stop watching: the workers must stop, or have exited."""
        if self._timer:
            self._timer.cancel()
        self.is_watching = False
        moved = [watch for watch in self._watches.values() if watch.pace.moves]
        known = {watch.pid: watch.pace.longest_step() for watch in moved}
        self._longest |= {pid: seconds for pid, seconds in known.items() if seconds is not None}
        firsts = [watch.pace.longest_first for watch in moved if watch.pace.is_warmup_done]
        self._first = max(firsts, default=None) if self._first is None else max(self._first, *firsts, 0.0)
        if self._watches:
            self._leaving = dict(self._watches)
        self._watches.clear()
        self._go_on()

    def longest_step(self, local_ranks: AbstractSet[int]) -> float:
        """Return the seconds that any of these local ranks may be busy with work that cannot be interrupted.

        A stopped rank is not busy. Called when a group is over: from then on, no step times are learned, since stays
        that end later were waits for the lost peer.
        """
        now = time.monotonic()
        watches = self._watches or self._leaving
        for watch in watches.values():
            watch.pace.is_closed = True
        return max((self._step_of(watches.get(local_rank), now) for local_rank in local_ranks), default=0.0)

    def unresponsive_ranks(self, local_ranks: AbstractSet[int]) -> frozenset[int]:
        """Return those of these local ranks that a signal has stopped, or that hold the GIL for longer than their
        limit.
        """
        now = time.monotonic()
        statuses = [watch.observe(now) for watch in (self._watches or self._leaving).values()]
        return frozenset(
            status.local_rank for status in statuses if status.local_rank in local_ranks and _is_unresponsive(status)
        )

    def _step_of(self, watch: RankWatch | None, now: float) -> float:
        if watch is None:
            return FIRST_STEP_SECONDS
        status = watch.observe(now)
        if status.state in {RankState.STOPPED, RankState.TRACED}:
            return 0.0
        longest = watch.pace.longest_step(status.section)
        if longest is None and status.section not in PATIENT:
            longest = self._longest.get(watch.pid)
            if longest is None and self._first is not None:
                return min(FIRST_STEP_SECONDS, STEP_FACTOR * self._first)
        return FIRST_STEP_SECONDS if longest is None else STEP_FACTOR * longest

    def remove_worker(self, local_rank: int, failure: messages.Failure) -> messages.Failure:
        """Stop watching a worker that has exited.

        Returns:
            Its failure, with the hang as its reason if the watchdog killed it.
        """
        watch = self._watches.pop(local_rank, None)
        if watch and watch.cells[heartbeat_page.HAS_DISTRIBUTED]:
            self.largest_groups[local_rank] = int(watch.cells[heartbeat_page.LARGEST_GROUP])
        self._leaving.pop(local_rank, None)
        if local_rank not in self._condemned or failure.exit_code == Exit.SUCCESS:
            return failure
        sentence, stack = self._condemned.pop(local_rank)
        return replace(failure, exit_code=int(Exit.HANG), reason=FailureReason.HANG, message=sentence, stack=stack)

    def status_server(self, environment: Mapping[str, str]) -> HangStatusServer:
        """Return the server of the pages about these ranks."""
        return HangStatusServer(self.folder, environment, self, self._status_fields, self._findings, self.log)

    async def summarize_ranks(self) -> list[dict[str, Any]]:
        """Return outlines of the ranks without any work of theirs."""
        return await self._outlines.of(tuple(self._watches.values()))

    async def take_snapshots(self) -> list[dict[str, Any]]:
        """Return snapshots of the ranks with their stacks."""
        return await rank_snapshot.take_snapshots(tuple(self._watches.values()))

    def _status_fields(self) -> dict[str, object]:
        return {"node": self.node, "generation": self._generation, "on_hang": str(self.policy.on_hang)}

    def on_message(self, message: messages.Show | messages.HangingRanks) -> None:
        """Handle the store's request for states, or its decision."""
        if message.generation == self._generation and self._watches:
            task = self._loop.create_task(
                self._show() if isinstance(message, messages.Show) else self._apply_decision(message)
            )
            self._work.add(task)
            task.add_done_callback(self._work.discard)

    # ------------------------------------------------------------------ observation

    def _schedule_check(self) -> None:
        self._timer = self._loop.call_later(self.policy.poll_interval_seconds, self._check_ranks)

    def _check_ranks(self) -> None:
        now = time.monotonic()
        statuses = [watch.observe(now) for watch in self._watches.values()]
        self._record(statuses)
        if now > self._find_launchers_at:
            self._find_launchers_at = math.inf
            self._report_launchers()
        overdue = [status for status in statuses if is_long(status)]
        if overdue and now >= self._alarm_at:
            longest = max(status.seconds for status in overdue)
            self._alarm_at = now + min(LONGEST_ALARM_PAUSE, max(self.policy.poll_interval_seconds, longest / 8))
            self.send(messages.SuspectHang(generation=self._generation))
        self._schedule_check()

    def _report_launchers(self) -> None:
        """Print which launcher the workers have started, if one has."""
        for watch in self._watches.values():
            if name := "" if watch.is_in_group else nested_launcher(watch.pid):
                self.log(
                    f"nested launcher: rank {watch.rank} has started {name}; where every rank does so, each starts "
                    "ranks of its own, which do not work together"
                )
                return

    def _record(self, statuses: list[RankStatus]) -> None:
        """Record for how long no local rank has made progress, until the first progress after the store's report."""
        if self._waits_for is None:
            return
        reported_at, rank = self._waits_for
        if any(watch.moved_at > reported_at for watch in self._watches.values()):
            self._go_on()
        else:
            self.stalled(min((status.seconds for status in statuses), default=0.0), rank)

    def _go_on(self) -> None:
        if self._waits_for is not None:
            self._waits_for = None
            self.stalled(0.0, NO_RANK)

    async def _show(self) -> None:
        """Collect the state of each worker and send it to the store."""
        generation = self._generation
        watches = tuple(self._watches.values())
        records = asyncio.gather(*(asyncio.to_thread(rank_snapshot.write_record, watch) for watch in watches))
        statuses = await rank_snapshot.collect_snapshots(watches)
        await records
        self.send(messages.RankStates(generation=generation, ranks=tuple(statuses)))

    # ------------------------------------------------------------------ reaction

    async def _apply_decision(self, hung: messages.HangingRanks) -> None:
        acts = self.policy.on_hang is OnHang.ACT
        self._waits_for = (time.monotonic(), min(hung.ranks, default=NO_RANK))
        self._findings.add(hung.generation, hung.ranks, hung.to_kill if acts else (), hung.sentences)
        if not hung.ranks:
            self.log(f"hang: {'; '.join(hung.sentences)}; the stacks of all are in {self._stacks()}")
            return
        for rank, sentence in zip(hung.ranks, hung.sentences, strict=True):
            is_hung = rank in hung.to_kill
            words = f"hang: {sentence}; {'it is killed' if acts else 'the others wait for it'}"
            self.log(words if is_hung else f"waiting: {waits_for(sentence)}")
        if hung.more:
            self.log(f"hang: the others wait for {hung.more} more {'rank' if hung.more == 1 else 'ranks'}")
        reasons = dict(zip(hung.ranks, hung.sentences, strict=True))
        for watch in [watch for watch in self._watches.values() if watch.rank in reasons]:
            is_hung = watch.rank in hung.to_kill
            is_doomed = acts and is_hung
            # A signal ends a sleep in C, so a rank that may only be slow gets none.
            stack = await self._stack(watch, by_signal=is_hung)
            if self._watches.get(watch.local_rank) is not watch:
                continue  # it has exited meanwhile, or is already in the next group
            if not is_doomed:
                self.log(f"hang: stack of rank {watch.rank}, all in {watch.folder}/stacks.txt:\n{stack}")
                continue
            self._condemned[watch.local_rank] = (f"R{reasons[watch.rank][1:]}", stack)
            self.kill(watch.local_rank)

    def _stacks(self) -> str:
        folders = {str(watch.folder.parent) for watch in self._watches.values()}
        return f"{', '.join(sorted(folders))}/*/stacks.txt"

    async def _stack(self, watch: RankWatch, *, by_signal: bool) -> str:
        """Return the stack of a rank from the best available source, and append it to its file."""
        status = watch.observe_with_response(time.monotonic())
        file = watch.folder / "stacks.txt"
        if status.stage:
            status = await watch.observe_from_signal(time.monotonic())
            with contextlib.suppress(OSError), file.open("a") as out:
                out.write(status.stack)
        if status.state is RankState.ALIVE and status.stack:
            return clean_text(status.stack)
        before = file.stat().st_size if file.exists() else 0
        if by_signal and status.state is RankState.DEAF and (number := watch.stack_dump_signal()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(watch.pid, number)
            await asyncio.sleep(DUMP_SECONDS)
        text = kernel_stack(watch.pid)
        with contextlib.suppress(OSError):
            with file.open("a") as out:
                out.write(text + "\n")
            text = file.read_text(errors="replace")[before:]
        return clean_text(text[-MOST_STACK_CHARACTERS:])


def _is_unresponsive(status: RankStatus) -> bool:
    return status.state is RankState.STOPPED or (status.state is RankState.DEAF and status.has_exceeded_limit(1.0))
