"""What the time of a job comes to: one set of words for the trainer's summary and for the launcher's last words.

``goodput = (productive - lost) / (all - suspended)``: productive time of steps that were lost with a crash stays
productive, since a counter cannot be taken back, and is counted beside it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from ddp_trainer.common.constants import JobTime

_NO_COST: Final = frozenset({JobTime.PRODUCTIVE, JobTime.SUSPENDED})
_SHOWN_SECONDS: Final = 0.0005


@dataclass(frozen=True, slots=True)
class JobAccount:
    """What the wall clock of a job went into so far, over all its processes and pods."""

    started: float
    """Unix time at which the job first started."""
    seconds: Sequence[float]
    """In the order of :class:`~ddp_trainer.common.constants.JobTime`."""
    lost_steps: int
    """Committed steps that did not survive, and had to be done again."""
    lost_seconds: float
    """Productive time of those."""

    @property
    def spent(self) -> Mapping[JobTime, float]:
        """Seconds by state."""
        return dict(zip(JobTime, self.seconds, strict=True))

    @property
    def until(self) -> float:
        """Unix time up to which it tells."""
        return self.started + sum(self.seconds)

    def up_to(self, now: float, state: JobTime) -> JobAccount:
        """The same, where the time since has gone into ``state``."""
        more = max(0.0, now - self.until)
        seconds = [spent + more * (each is state) for each, spent in self.spent.items()]
        return JobAccount(self.started, seconds, self.lost_steps, self.lost_seconds)

    @classmethod
    def begun(cls, started: float) -> Self:
        """That of a job of which nothing is known yet but when it started."""
        return cls(started, (0.0,) * len(JobTime), 0, 0.0)

    def to_json(self) -> str:
        """For the launcher of the same pod; the inverse is :meth:`from_json`."""
        return json.dumps([self.started, self.lost_steps, self.lost_seconds, *self.seconds])

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """The inverse of :meth:`to_json`; None of a text that is something else."""
        try:
            numbers = json.loads(text)
            if len(numbers) != 3 + len(JobTime) or not all(0.0 <= number < math.inf for number in numbers):
                return None
        except (ValueError, TypeError):
            return None
        started, lost_steps, lost_seconds, *seconds = map(float, numbers)
        return cls(started, seconds, int(lost_steps), lost_seconds)

    def summary(self) -> dict[str, Any]:
        """Plain values, as summaries and termination messages hold them; states that took no time are left out."""
        spent = self.spent
        return {
            "lost_steps": self.lost_steps,
            "lost_seconds": round(self.lost_seconds, 3),
            "goodput": round(goodput(spent, self.lost_seconds), 4),
            "largest_badput": largest_badput(spent, self.lost_seconds),
            "spent": {str(state): round(seconds, 3) for state, seconds in spent.items() if seconds >= _SHOWN_SECONDS},
            "seconds": round(sum(self.seconds), 3),
        }


def goodput(spent: Mapping[JobTime, float], lost_seconds: float) -> float:
    """Share of the time in which the job had its pods that went into steps that count, 0 to 1.

    >>> goodput({JobTime.PRODUCTIVE: 80.0, JobTime.STARTUP: 20.0, JobTime.SUSPENDED: 3600.0}, 5.0)
    0.75
    """
    had = sum(spent.values()) - spent.get(JobTime.SUSPENDED, 0.0)
    return (spent.get(JobTime.PRODUCTIVE, 0.0) - lost_seconds) / max(had, 1e-9)


def largest_badput(spent: Mapping[JobTime, float], lost_seconds: float) -> str:
    """What cost most: a state, or ``lost_progress``; empty where nothing cost anything."""
    costs = {str(state): seconds for state, seconds in spent.items() if state not in _NO_COST}
    costs["lost_progress"] = lost_seconds
    name = max(costs, key=lambda each: costs[each])
    return name if costs[name] else ""
