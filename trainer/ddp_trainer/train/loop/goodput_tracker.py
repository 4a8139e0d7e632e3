"""What a run has gone through, over all its processes: steps lost, and what its time has gone into.

Both stand in the odometer, which outlives a crash, and the account of the time once more in every checkpoint, together
with the productive time that led to the state stored there: only what survived counts.

All ranks hold one account, rank 0's: it says with its ballots what its time went into, and any of them can go on from
there when it is lost. What is told to the metrics is the account of the vote before, which all ranks are known to hold:
a counter that another rank would have to take back, however little, is read as one that began anew.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, NotRequired, TypedDict

from ddp_trainer.common.constants import File, JobTime
from ddp_trainer.common.goodput import JobAccount
from ddp_trainer.process.recorder import RankRecorder, SilentRankRecorder
from ddp_trainer.train.checkpoint.checkpoint_broadcast import agreed
from ddp_trainer.train.checkpoint.progress_file import ProgressFile, Reading
from ddp_trainer.train.config.goodput_account import Account, Arrival
from ddp_trainer.train.config.worker_env import Environment
from ddp_trainer.train.distributed.group import Group
from ddp_trainer.train.loop.step_consensus import NO_WORD
from ddp_trainer.train.observability.step_timer import BESIDE_STEPS, StepTimer

ACCOUNT_SECONDS: Final = 0.1
"""The account is brought up to date by the first vote when it is older than this: steps of microseconds pay nothing."""
_FIRST: Final = 0
"""Whose time is accounted for."""


class HistoryState(TypedDict):
    """What a checkpoint holds of it."""

    productive: float
    first_start: float
    account: NotRequired[list[float]]
    """Not in checkpoints that are older than accounts."""
    lost_steps: NotRequired[int]
    """Before it was written; nor in those that are older than this."""


class GoodputTracker:
    """The account that processes of one run hand on to each other."""

    def __init__(self, phases: StepTimer, clock: Callable[[], float] = time.time) -> None:
        """``clock`` tells Unix time."""
        self._odometer: ProgressFile | None = None
        self._phases = phases
        self._clock = clock
        self._recorder: RankRecorder = SilentRankRecorder()
        self._reading = Reading()
        self._env = Environment()
        self._group = Group.alone()
        self._began = self._restoring = self._restored = 0.0
        self._loaded = False
        self._is_training = False
        self._is_first = True
        self._base = phases.spent_beside_steps
        self._heard: Sequence[float] = NO_WORD

    def recall(
        self, odometer: ProgressFile | None, recorder: RankRecorder, group: Group, began: float, env: Environment
    ) -> None:
        """What this process and earlier ones went through, as far as any rank knows; every rank must call it.

        ``odometer`` is None on a rank that writes none in this group; ``began`` is when this process did, in seconds
        since the Unix epoch.
        """
        if self._odometer is not None:
            self._odometer.close()
        self._odometer, self._recorder, self._env, self._began = odometer, recorder, env, began
        self._is_training, self._is_first, self._group = False, group.rank == _FIRST, group
        own = self._reading if odometer is None else self._reading.merged(odometer.read())
        self._reading = agreed(own, group, min(began, env.moments.launched or began))
        self._leave_to_launcher()

    def _leave_to_launcher(self) -> None:
        """What was before this pod: should it end before its first step, nobody else could tell.

        It is no metric before that step: until then another rank may have to begin anew.
        """
        account, run_dir, launched = self._account.copy(), self._env.run_dir, self._env.moments.launched
        if not self._is_first or run_dir is None or not account.until:
            return
        account.begin(self._reading.first_start)
        account.spend(JobTime.SUSPENDED if account.has_left else JobTime.SCHEDULING, launched)
        with contextlib.suppress(OSError):
            (run_dir / File.ACCOUNT).write_text(self._of_job(account).to_json())

    def restoring(self) -> None:
        """From now on this process looks for a state to go on from: it trains no more, if it did in another group."""
        self._is_training = False
        self._restoring = self._clock()

    def restored(self, *, loaded: bool) -> None:
        """It has one, which was ``loaded`` or is that of a new run, or its own."""
        self._restored, self._loaded = self._clock(), loaded

    def begin(self) -> None:
        """The first step of this group begins."""
        account = self._account
        account.begin(self._reading.first_start)
        arrival = Arrival(
            moments=self._env.moments,
            restarts=self._env.restarts,
            process=self._began,
            restoring=self._restoring,
            restored=self._restored,
            loaded=self._loaded,
        )
        account.arrive(arrival, self._clock())
        self._reading.account = Account.unpack(self._group.broadcast(account.pack(), _FIRST))
        self._base, self._heard = self._phases.spent_beside_steps, NO_WORD
        self._is_training = True
        self._group.gather(0)  # whoever passes here knows that all ranks hold it
        self._tell(self._account)

    def go_on_from(self, step: int) -> int:
        """Training goes on after so many steps: those that were ever committed beyond are lost; how many these are."""
        lost = max(0, self._reading.highest_step - step)
        if step == 0:
            self._account.survives(0.0)  # there is no checkpoint that would say so
        self._reading.highest_step = step
        self._reading.lost_steps += lost
        self.reached(step)
        if self._is_training:
            self._tell(self._account)
        return lost

    def word(self) -> Sequence[float]:
        """What this rank's ballot says of the time: rank 0 now and then that and what it went into, the others nothing.

        Unix time, and the seconds since the group began its first step in the order of :data:`BESIDE_STEPS`.
        """
        if not self._is_first:
            return NO_WORD
        now = self._clock()
        if now - self._account.until < ACCOUNT_SECONDS:
            return NO_WORD
        spent = self._phases.spent_beside_steps
        return (now, *(later - before for later, before in zip(spent, self._base, strict=True)))

    def reached(self, step: int, word: Sequence[float] = NO_WORD) -> None:
        """So many steps are committed now; ``word`` is what the ballots of the last one said of the time."""
        self._reading.highest_step = max(self._reading.highest_step, step)
        if self._odometer is not None:
            self._odometer.write(self._reading)
        if word[0]:
            self._tell(self._account)
            self._work(self._account, word)
            self._heard = word
            if self._odometer is not None:
                self._odometer.write_account(self._account)

    def _work(self, account: Account, word: Sequence[float]) -> None:
        now, *spent = word
        parts = [later - before for later, before in zip(spent, self._heard[1:], strict=True)]
        account.work(now, dict(zip(BESIDE_STEPS, parts, strict=True)))

    def finish(self) -> None:
        """The run is complete: there is no vote that what rank 0 tells of the time until now could contradict."""
        if self._is_training and self._is_first:
            self._tell(self._until_now())

    def leave(self) -> None:
        """This process was told to stop, and has saved what it had to; the next one tells what that took."""
        account = self._until_now() if self._is_first else self._account.copy()
        account.leave()
        if self._odometer is not None and self._account.until:
            self._odometer.write_account(account)

    def _until_now(self) -> Account:
        """The account as this rank alone would have it: every step until now is committed."""
        account = self._account.copy()
        if self._is_training:
            spent = self._phases.spent_beside_steps
            since = [later - before for later, before in zip(spent, self._base, strict=True)]
            self._work(account, (self._clock(), *since))
        return account

    def _tell(self, account: Account) -> None:
        if self._odometer is not None:
            self._odometer.write_account(account)
        self._recorder.account(self._of_job(account))

    def _of_job(self, account: Account) -> JobAccount:
        return JobAccount(self._reading.first_start, tuple(account.seconds), self._reading.lost_steps, account.lost)

    @property
    def _account(self) -> Account:
        return self._reading.account

    def summary(self) -> dict[str, Any]:
        """The part of :class:`~ddp_trainer.train.checkpoint.summary.Summary` that tells of it, over all processes so
        far.
        """
        seconds = round(max(self._clock() - self._reading.first_start, 1e-9), 3)
        return self._of_job(self._until_now()).summary() | {"seconds": seconds}

    def state_dict(self) -> HistoryState:
        """Plain values only."""
        account = self._until_now()
        return {
            "productive": account.surviving,
            "first_start": self._reading.first_start,
            "account": account.to_list(),
            "lost_steps": self._reading.lost_steps,
        }

    def load_state_dict(self, state: HistoryState) -> None:
        """Go on from a stored account; what this run was busy with since that did not survive."""
        stored = Account.from_list(state.get("account", []))
        if stored.until > self._account.until:  # no odometer has outlived the process that stored it
            self._reading.account = stored
        self._account.survives(state["productive"])
        self._reading.lost_steps = max(self._reading.lost_steps, state.get("lost_steps", 0))
        self._reading.first_start = min(self._reading.first_start, state["first_start"])
        self._leave_to_launcher()
