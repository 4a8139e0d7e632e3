"""Time breakdown and lost steps of a run, over all its processes.

:class:`GoodputTracker` stores both in the progress file (:mod:`ddp_trainer.train.checkpoint.progress_file`), which
survives a crash. Every checkpoint also holds the time account, and the productive time that led to its state. Only
steps that survive count as productive.

All ranks hold the same account, rank 0's: rank 0 adds its times to the commit vote. Any rank can continue the account
if rank 0 is lost. The metrics show the account of the previous vote, which all ranks are known to hold. A counter that
another rank had to decrease, however little, would be read as a counter reset.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NotRequired, TypedDict

from ddp_trainer.common.constants import File
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.common.time_classes import JobTime
from ddp_trainer.process.recorder import NoopRankRecorder, RankRecorder
from ddp_trainer.train.checkpoint.checkpoint_broadcast import sync_progress
from ddp_trainer.train.checkpoint.progress_file import ProgressFile, RunProgress
from ddp_trainer.train.config.goodput_account import Account
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.observability.step_timer import BESIDE_STEPS, StepTimer

ACCOUNT_SECONDS: Final = 0.1
"""Minimum seconds between two updates of the account, so that steps of microseconds pay nothing."""
NO_TIMES: Final = (0.0, 0.0, 0.0, 0.0)
"""Times of a rank that reports no times."""
_FIRST: Final = 0
"""Rank whose time the account describes."""


class HistoryState(TypedDict):
    """State of the tracker in a checkpoint: times in seconds, ``first_start`` as Unix time."""

    productive: float
    first_start: float
    account: NotRequired[list[float]]
    """Missing in checkpoints from versions without accounts."""
    lost_steps: NotRequired[int]
    """Steps lost before the checkpoint was written; missing in checkpoints from older versions."""


class GoodputTracker:
    """Time account and lost steps that the processes of one run pass on to each other."""

    def __init__(self, phases: StepTimer, clock: Callable[[], float] = time.time) -> None:
        """``clock`` returns Unix time in seconds."""
        self._progress_file: ProgressFile | None = None
        self._phases = phases
        self._clock = clock
        self._recorder: RankRecorder = NoopRankRecorder()
        self._reading = RunProgress()
        self._env = Environment()
        self._group = Group.single_rank()
        self._began = self._restoring = self._restored = 0.0
        self._loaded = False
        self._is_training = False
        self._is_first = True
        self._base = phases.non_step_seconds
        self._reported: Sequence[float] = NO_TIMES

    def load(
        self, progress_file: ProgressFile | None, recorder: RankRecorder, group: Group, began: float, env: Environment
    ) -> None:
        """Load the account of this and earlier processes, merged over all ranks; every rank must call it.

        Args:
            progress_file: The progress file; None on a rank that does not write it in this group.
            recorder: The recorder of the metrics.
            group: The new worker group.
            began: Start of this process, in seconds since the Unix epoch.
            env: The environment of this process in the group.
        """
        if self._progress_file is not None:
            self._progress_file.close()
        self._progress_file, self._recorder, self._env, self._began = progress_file, recorder, env, began
        self._is_training, self._is_first, self._group = False, group.rank == _FIRST, group
        own = self._reading if progress_file is None else self._reading.merged(progress_file.read())
        self._reading = sync_progress(own, group, min(began, env.moments.launched or began))
        self._write_launcher_account()

    def _write_launcher_account(self) -> None:
        """Write the account of the time before this pod to a file for the launcher.

        If this process ends before its first step, no other source has that time. It does not become a metric before
        that step, because until then another rank may replace the account.
        """
        account, run_dir, launched = self._account.copy(), self._env.run_dir, self._env.moments.launched
        if not self._is_first or run_dir is None or not account.until:
            return
        account.begin(self._reading.first_start)
        account.add_time(JobTime.SUSPENDED if account.has_left else JobTime.SCHEDULING, launched)
        with contextlib.suppress(OSError):
            (run_dir / File.ACCOUNT).write_text(self._of_job(account).to_json())

    def begin_restore(self) -> None:
        """Start the restore phase; training in an earlier group has ended."""
        self._is_training = False
        self._restoring = self._clock()

    def end_restore(self, *, loaded: bool) -> None:
        """End the restore phase; ``loaded`` is False for the state of a new run or this process's own."""
        self._restored, self._loaded = self._clock(), loaded

    def begin(self) -> None:
        """Start the account of this group, directly before its first step; every rank must call it."""
        account = self._account
        account.begin(self._reading.first_start)
        account.arrive(
            self._env.moments,
            self._env.restarts,
            process=self._began,
            restoring=self._restoring,
            restored=self._restored,
            loaded=self._loaded,
            now=self._clock(),
        )
        self._reading.account = Account.unpack(self._group.broadcast(account.pack(), _FIRST))
        self._base, self._reported = self._phases.non_step_seconds, NO_TIMES
        self._is_training = True
        self._group.gather(0)  # a barrier: after it, all ranks hold the account
        self._publish_account(self._account)

    def go_on_from(self, step: int) -> int:
        """Set the step to resume from, and return how many steps committed beyond it are lost."""
        lost = max(0, self._reading.highest_step - step)
        if step == 0:
            self._account.record_lost_time(0.0)  # without a checkpoint, nothing else sets the surviving time
        self._reading.highest_step = step
        self._reading.lost_steps += lost
        self.record_step(step)
        if self._is_training:
            self._publish_account(self._account)
        return lost

    def time_report(self) -> Sequence[float]:
        """Return this rank's times for the vote: Unix time, then seconds in the order of :data:`BESIDE_STEPS`.

        The seconds count from the start of the group's first step. The result is :data:`NO_TIMES` on other ranks than
        rank 0, and on rank 0 while the account is newer than :data:`ACCOUNT_SECONDS`.
        """
        if not self._is_first:
            return NO_TIMES
        now = self._clock()
        if now - self._account.until < ACCOUNT_SECONDS:
            return NO_TIMES
        spent = self._phases.non_step_seconds
        return (now, *(later - before for later, before in zip(spent, self._base, strict=True)))

    def record_step(self, step: int, times: Sequence[float] = NO_TIMES) -> None:
        """Record that ``step`` steps are committed.

        Args:
            step: Number of committed steps.
            times: Times in the decision of the last vote; see :meth:`time_report`.
        """
        self._reading.highest_step = max(self._reading.highest_step, step)
        if self._progress_file is not None:
            self._progress_file.write(self._reading)
        if times[0]:
            self._publish_account(self._account)
            self._work(self._account, times)
            self._reported = times
            if self._progress_file is not None:
                self._progress_file.write_account(self._account)

    def _work(self, account: Account, times: Sequence[float]) -> None:
        now, *spent = times
        parts = [later - before for later, before in zip(spent, self._reported[1:], strict=True)]
        account.work(now, dict(zip(BESIDE_STEPS, parts, strict=True)))

    def finish(self) -> None:
        """Report the final account; after the last vote rank 0 can report the time until now without contradiction."""
        if self._is_training and self._is_first:
            self._publish_account(self._until_now())

    def save_account(self) -> None:
        """Store the account after the final save of a requested stop; the next process reports it to the metrics."""
        account = self._until_now() if self._is_first else self._account.copy()
        account.has_left = True
        if self._progress_file is not None and self._account.until:
            self._progress_file.write_account(account)

    def _until_now(self) -> Account:
        """Return this rank's account up to now; it assumes that all steps until now are committed."""
        account = self._account.copy()
        if self._is_training:
            spent = self._phases.non_step_seconds
            since = [later - before for later, before in zip(spent, self._base, strict=True)]
            self._work(account, (self._clock(), *since))
        return account

    def _publish_account(self, account: Account) -> None:
        if self._progress_file is not None:
            self._progress_file.write_account(account)
        self._recorder.account(self._of_job(account))

    def _of_job(self, account: Account) -> JobAccount:
        return JobAccount(self._reading.first_start, tuple(account.seconds), self._reading.lost_steps, account.lost)

    @property
    def _account(self) -> Account:
        return self._reading.account

    def summary(self) -> dict[str, Any]:
        """Return the time fields of the :class:`~ddp_trainer.train.checkpoint.summary.Summary`, over all processes."""
        seconds = round(max(self._clock() - self._reading.first_start, 1e-9), 3)
        return self._of_job(self._until_now()).summary() | {"seconds": seconds}

    @property
    def run_name(self) -> str:
        """Name of a run outside of Kubernetes, from its first start; the same on all ranks."""
        return f"ddp-{int(self._reading.first_start * 1e6):x}"

    def state_dict(self) -> HistoryState:
        """Return the state for a checkpoint, in plain values only."""
        account = self._until_now()
        return {
            "productive": account[JobTime.PRODUCTIVE] - account.lost,
            "first_start": self._reading.first_start,
            "account": account.to_list(),
            "lost_steps": self._reading.lost_steps,
        }

    def load_state_dict(self, state: HistoryState) -> None:
        """Restore a stored account; productive time since it was stored counts as lost."""
        stored = Account.from_list(state.get("account", []))
        if stored.until > self._account.until:  # no progress file survived the process that stored it
            self._reading.account = stored
        self._account.record_lost_time(state["productive"])
        self._reading.lost_steps = max(self._reading.lost_steps, state.get("lost_steps", 0))
        self._reading.first_start = min(self._reading.first_start, state["first_start"])
        self._write_launcher_account()
