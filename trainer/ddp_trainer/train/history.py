"""What a run has gone through, over all its processes: steps lost, and what its time has gone into.

Both stand in the odometer, which outlives a crash, and the account of the time once more in every checkpoint, together
with the productive time that led to the state stored there: only what survived counts.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final, NotRequired, TypedDict

from ddp_trainer.contract import JobTime
from ddp_trainer.recorder import RankRecorder, SilentRankRecorder
from ddp_trainer.train.account import Account, Arrival
from ddp_trainer.train.environment import Environment
from ddp_trainer.train.exchange import agreed
from ddp_trainer.train.group import Group
from ddp_trainer.train.odometer import Odometer, Reading
from ddp_trainer.train.phases import Phases

ACCOUNT_SECONDS: Final = 0.1
"""After a step the account is brought up to date when it is older than this: steps of microseconds pay nothing."""
_SHOWN_SECONDS: Final = 0.0005


class HistoryState(TypedDict):
    """What a checkpoint holds of it."""

    productive: float
    first_start: float
    account: NotRequired[list[float]]
    """Not in checkpoints that are older than accounts."""


class History:
    """The account that processes of one run hand on to each other."""

    def __init__(self, phases: Phases, clock: Callable[[], float] = time.time) -> None:
        """``clock`` tells Unix time."""
        self._odometer: Odometer | None = None
        self._phases = phases
        self._clock = clock
        self._recorder: RankRecorder = SilentRankRecorder()
        self._reading = Reading()
        self._env = Environment()
        self._began = self._restoring = self._restored = 0.0
        self._loaded = False
        self._is_training = False
        self._told = phases.unproductive

    def recall(
        self, odometer: Odometer | None, recorder: RankRecorder, group: Group, began: float, env: Environment
    ) -> None:
        """What this process and earlier ones went through, as far as any rank knows; every rank must call it.

        ``odometer`` is None on a rank that writes none in this group; ``began`` is when this process did, in seconds
        since the Unix epoch.
        """
        if self._odometer is not None:
            self._odometer.close()
        self._odometer, self._recorder, self._env, self._began = odometer, recorder, env, began
        self._is_training = False
        own = self._reading if odometer is None else self._reading.merged(odometer.read())
        self._reading = agreed(own, group, min(began, env.moments.launched or began))

    def restoring(self) -> None:
        """From now on this process looks for a state to go on from."""
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
        self._told = self._phases.unproductive
        self._is_training = True
        self._tell()

    def go_on_from(self, step: int) -> int:
        """Training goes on after so many steps: those that were ever committed beyond are lost; how many these are."""
        lost = max(0, self._reading.highest_step - step)
        if step == 0:
            self._account.survives(0.0)  # there is no checkpoint that would say so
        self._reading.highest_step = step
        self._reading.lost_steps += lost
        self.reached(step)
        if self._is_training:
            self._tell()
        return lost

    def reached(self, step: int) -> None:
        """So many steps are committed now."""
        self._reading.highest_step = max(self._reading.highest_step, step)
        if self._odometer is not None:
            self._odometer.write(self._reading)
        if self._is_training and self._clock() - self._account.until >= ACCOUNT_SECONDS:
            self.settle()

    def settle(self) -> None:
        """Bring the account up to date: every step until now is committed."""
        if not self._is_training:
            return
        unproductive = self._phases.unproductive
        parts = {state: seconds - self._told[state] for state, seconds in unproductive.items()}
        self._told = unproductive
        self._account.work(self._clock(), parts)
        self._tell()

    def leave(self) -> None:
        """This process was told to stop, and has saved what it had to."""
        self.settle()
        self._account.leave()
        self._tell()

    def _tell(self) -> None:
        if self._odometer is not None:
            self._odometer.write_account(self._account)
        self._recorder.account(self._account.seconds, self._reading.lost_steps, self._account.lost)

    @property
    def _account(self) -> Account:
        return self._reading.account

    def summary(self) -> dict[str, Any]:
        """The part of :class:`~ddp_trainer.train.summary.Summary` that tells of it, over all processes so far."""
        self.settle()
        account = self._account
        return {
            "lost_steps": self._reading.lost_steps,
            "lost_seconds": round(account.lost, 3),
            "goodput": round(account.goodput, 4),
            "largest_badput": account.largest_badput,
            "spent": {str(state): round(account[state], 3) for state in JobTime if account[state] >= _SHOWN_SECONDS},
            "seconds": round(max(self._clock() - self._reading.first_start, 1e-9), 3),
        }

    def state_dict(self) -> HistoryState:
        """Plain values only."""
        self.settle()
        account = self._account
        return {
            "productive": account.surviving,
            "first_start": self._reading.first_start,
            "account": account.to_list(),
        }

    def load_state_dict(self, state: HistoryState) -> None:
        """Go on from a stored account; what this run was busy with since that did not survive."""
        self.settle()
        stored = Account.from_list(state.get("account", []))
        if stored.until > self._account.until:  # no odometer has outlived the process that stored it
            self._reading.account = stored
        self._account.survives(state["productive"])
        self._reading.first_start = min(self._reading.first_start, state["first_start"])
