"""Restart budget of a run: restarts by cause, their cost, and the end of the budget.

:class:`Budget` decides after each group whether another one follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ddp_trainer.common.constants import FailureReason, RestartCause
from ddp_trainer.launch.failures import type_of
from ddp_trainer.launch.protocol import exit_codes
from ddp_trainer.launch.protocol.messages import Failure, Policy

UNEXPLAINED_STOPS: Final = 10
"""Number of times in a row that a group may stop with a free exit code and all its members. After that, a stop is a
failure.

Without this limit, a script that always exits with 143 would restart forever.
"""
MOST_REPEATS: Final = 3
"""Number of groups in a row that may end with the same error before the first step of the run."""
REPEATABLE: Final = frozenset(
    {FailureReason.PYTHON_EXCEPTION, FailureReason.IMPORT_ERROR, FailureReason.GPU_OOM, FailureReason.OTHER}
)
"""Reasons of failures that the program itself causes. A signal, a lost peer or a GPU may be gone the next time."""
_INCURABLE: Final = ("ModuleNotFoundError", "SyntaxError", "IndentationError", "TabError")
"""Exceptions before the first step that are the same at every start."""


@dataclass(slots=True)
class Budget:
    """Restarts of one run."""

    restarts: dict[str, int] = field(default_factory=dict)
    """Cause → count over the run so far."""
    has_stepped: bool = False
    """A worker of the run has taken a step, or may have."""
    hopeless_after: int = 0
    """Number of groups in a row after whose equal error the run was given up; 0 if it was not."""
    _repeats: int = 0
    _repeated: tuple[int, str] = (0, "")
    """Exit code and message of the last error before the first step."""
    _unexplained: int = 0
    _lost: set[str] = field(default_factory=set)
    """Names of lost members whose successors have not come. Their launchers may have crashed."""

    def left(self, policy: Policy | None) -> int:
        """Return the number of restarts that failures may still use; 0 without a policy."""
        spent = sum(self.restarts.get(cause, 0) for cause in exit_codes.CHARGED)
        return max(0, policy.max_restarts - spent) if policy else 0

    def merge_counts(self, restarts: Mapping[str, int]) -> None:
        """Merge the counts that another node has reported of the same run. The larger count wins."""
        causes = restarts.keys() | self.restarts.keys()
        self.restarts = {cause: max(restarts.get(cause, 0), self.restarts.get(cause, 0)) for cause in causes}

    def decide_restart(
        self, first: Failure | None, policy: Policy | None, *, membership_changed: bool
    ) -> tuple[RestartCause, int]:
        """Return why a group ended, and the exit code of a run that is given up; 0 if another group follows.

        Args:
            first: First failure of the group; None if there was none.
            policy: Settings of the run.
            membership_changed: Whether the group ended because of a lost, new or leaving node.
        """
        cause = RestartCause.MEMBERSHIP if membership_changed or first is None else self._cause_of(first)
        self._unexplained = self._unexplained + 1 if cause is RestartCause.PREEMPTION else 0
        if first is None or cause not in exit_codes.CHARGED:
            return cause, 0
        if self._cannot_heal(first):
            self.hopeless_after = self._repeats
            return cause, exit_codes.of_given_up_run(first.exit_code)
        if first.exit_code not in exit_codes.HOPELESS and self.left(policy) > 0:
            return cause, 0
        return cause, exit_codes.of_given_up_run(first.exit_code)

    def _cannot_heal(self, first: Failure) -> bool:
        """Return whether an error before the first step of the run would only come again."""
        if self.has_stepped or first.reason not in REPEATABLE:
            self._repeats = 0
            return False
        error = first.exit_code, first.message.partition("\n")[0]
        self._repeats = self._repeats + 1 if error == self._repeated else 1
        self._repeated = error
        return self._repeats >= MOST_REPEATS or type_of(first.exit_code, first.message) in _INCURABLE

    def record_lost_member(self, name: str) -> None:
        """Record that a member of the newest group was lost: its launcher may have crashed."""
        self._lost.add(name)

    def count_crash(self, name: str, crash: Failure | None, policy: Policy | None) -> int:
        """Count the crash of a lost member's launcher as a failure. Returns the exit code of a run that is given up; 0
        if it continues.

        Each loss of a member is charged once, to the agent that has its name next. An agent outside of the group, such
        as a spare, is charged nothing; its resident parent limits its crashes.

        Args:
            name: Name of the agent that follows in the same pod.
            crash: Crash that it reports; None if there was none.
            policy: Settings of the run.
        """
        if name not in self._lost:
            return 0
        self._lost.remove(name)
        if crash is None:
            return 0
        if self.left(policy) == 0:
            return exit_codes.of_given_up_run(crash.exit_code)
        self.count(RestartCause.FAILURE)
        return 0

    def count(self, cause: RestartCause) -> None:
        """Count a restart."""
        self.restarts[cause.value] = self.restarts.get(cause, 0) + 1

    def _cause_of(self, first: Failure) -> RestartCause:
        cause = exit_codes.CAUSE_OF_CODE.get(first.exit_code, RestartCause.FAILURE)
        if cause is RestartCause.PREEMPTION and self._unexplained >= UNEXPLAINED_STOPS:
            return RestartCause.FAILURE
        return cause
