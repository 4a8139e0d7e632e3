"""Restarts of a run by cause, what each costs, and when there are no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from ddp_trainer.common.constants import RestartCause
from ddp_trainer.launch.protocol import exitcodes
from ddp_trainer.launch.protocol.messages import Failure, Policy

UNEXPLAINED_STOPS: Final = 10
"""So often in a row a group may stop itself with a free exit code and no member leaving; a script that always exits
143 would otherwise be restarted for ever."""


class Ending(NamedTuple):
    """Why a group ended."""

    cause: RestartCause
    giving_up: int
    """The exit code of a run that goes no further; 0 where there is a next group."""


@dataclass(slots=True)
class Budget:
    """That of one run."""

    restarts: dict[str, int] = field(default_factory=dict)
    """Cause → count, over the run so far."""
    _unexplained: int = 0

    def left(self, policy: Policy | None) -> int:
        """Restarts that failures may still cost."""
        spent = sum(self.restarts.get(cause, 0) for cause in exitcodes.CHARGED)
        return max(0, policy.max_restarts - spent) if policy else 0

    def learn(self, restarts: Mapping[str, int]) -> None:
        """What another one knew of the same run."""
        causes = restarts.keys() | self.restarts.keys()
        self.restarts = {cause: max(restarts.get(cause, 0), self.restarts.get(cause, 0)) for cause in causes}

    def judge(self, first: Failure | None, policy: Policy | None, *, membership_changed: bool) -> Ending:
        """What became of a group; ``first`` is its first failure."""
        cause = RestartCause.MEMBERSHIP if membership_changed or first is None else self._cause_of(first)
        self._unexplained = self._unexplained + 1 if cause is RestartCause.PREEMPTION else 0
        if first is None or cause not in exitcodes.CHARGED:
            return Ending(cause, 0)
        if first.exit_code not in exitcodes.HOPELESS and self.left(policy) > 0:
            return Ending(cause, 0)
        return Ending(cause, exitcodes.of_given_up_run(first.exit_code))

    def count(self, cause: RestartCause) -> None:
        """There is a next group."""
        self.restarts[cause.value] = self.restarts.get(cause, 0) + 1

    def _cause_of(self, first: Failure) -> RestartCause:
        cause = exitcodes.CAUSE_OF_CODE.get(first.exit_code, RestartCause.FAILURE)
        if cause is RestartCause.PREEMPTION and self._unexplained >= UNEXPLAINED_STOPS:
            return RestartCause.FAILURE
        return cause
