"""Time account and goodput of a job, for the trainer's summary and the launcher's termination message.

``goodput = (productive - lost) / (all - suspended)``. Productive time of steps that a crash lost stays in
``productive``, since a counter cannot decrease. It is counted again in ``lost``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from ddp_trainer.common.time_classes import JobTime

_NO_COST: Final = frozenset({JobTime.PRODUCTIVE, JobTime.SUSPENDED})
_SHOWN_SECONDS: Final = 0.0005


@dataclass(frozen=True, slots=True)
class JobAccount:
    """Wall-clock time of a job by class, over all its processes and pods."""

    started: float
    """Unix time at which the job first started."""
    seconds: Sequence[float]
    """Seconds of each class, in the order of :class:`~ddp_trainer.common.time_classes.JobTime`."""
    lost_steps: int
    """Committed steps that were lost and had to be repeated."""
    lost_seconds: float
    """Productive time of the lost steps, in seconds."""

    @property
    def seconds_by_state(self) -> Mapping[JobTime, float]:
        """Seconds of each class."""
        return dict(zip(JobTime, self.seconds, strict=True))

    @property
    def until(self) -> float:
        """Unix time at which this account ends."""
        return self.started + sum(self.seconds)

    def up_to(self, now: float, state: JobTime) -> JobAccount:
        """Return the account extended to Unix time ``now``, with the added time in ``state``."""
        more = max(0.0, now - self.until)
        seconds = [spent + more * (known_state is state) for known_state, spent in self.seconds_by_state.items()]
        return JobAccount(self.started, seconds, self.lost_steps, self.lost_seconds)

    @classmethod
    def empty(cls, started: float) -> Self:
        """Return the empty account of a job that started at Unix time ``started``."""
        return cls(started, (0.0,) * len(JobTime), 0, 0.0)

    def to_json(self) -> str:
        """Return the account as JSON for the launcher of the same pod; the inverse of :meth:`from_json`."""
        return json.dumps([self.started, self.lost_steps, self.lost_seconds, *self.seconds])

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """Return the account that :meth:`to_json` wrote, or None for any other text."""
        try:
            numbers = json.loads(text)
            if len(numbers) != 3 + len(JobTime) or not all(0.0 <= number < math.inf for number in numbers):
                return None
        except (ValueError, TypeError):
            return None
        started, lost_steps, lost_seconds, *seconds = map(float, numbers)
        return cls(started, seconds, int(lost_steps), lost_seconds)

    def summary(self) -> dict[str, Any]:
        """Return plain values for summaries and termination messages, without classes that took no time."""
        spent = self.seconds_by_state
        return {
            "lost_steps": self.lost_steps,
            "lost_seconds": round(self.lost_seconds, 3),
            "goodput": round(goodput(spent, self.lost_seconds), 4),
            "largest_badput": largest_badput(spent, self.lost_seconds),
            "spent": {str(state): round(seconds, 3) for state, seconds in spent.items() if seconds >= _SHOWN_SECONDS},
            "seconds": round(sum(self.seconds), 3),
        }


def goodput(spent: Mapping[JobTime, float], lost_seconds: float) -> float:
    """Return the goodput, 0 to 1: productive time that was not lost, divided by all time that is not suspended.

    >>> goodput({JobTime.PRODUCTIVE: 80.0, JobTime.STARTUP: 20.0, JobTime.SUSPENDED: 3600.0}, 5.0)
    0.75
    """
    had = sum(spent.values()) - spent.get(JobTime.SUSPENDED, 0.0)
    return (spent.get(JobTime.PRODUCTIVE, 0.0) - lost_seconds) / max(had, 1e-9)


def largest_badput(spent: Mapping[JobTime, float], lost_seconds: float) -> str:
    """Return the name of the largest cost, a :class:`~ddp_trainer.common.time_classes.JobTime` or ``lost_progress``.

    Empty where no time was lost.
    """
    costs = {str(state): seconds for state, seconds in spent.items() if state not in _NO_COST}
    costs["lost_progress"] = lost_seconds
    name = max(costs, key=lambda cost: costs[cost])
    return name if costs[name] else ""
