"""Watch of a list of jobs, for ``list --watch``: the jobs again whenever one of them has changed.

Metrics decide on a job's state and cannot be watched, so the list is read again at intervals.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kubectl_ddp.status.job_state import JobState, State

LEAST_SECONDS: Final = 0.5
MOST_SECONDS: Final = 10.0
READING_SHARE: Final = 0.05
"""Share of the time that reading may take: a list of 10,000 pods is read less often than one of 10."""


JobKey = tuple[str, str, str, str]
"""Place, namespace, name and uid of a job."""


def key_of(state: JobState) -> JobKey:
    """Return what identifies a job among those of all places, also if its name was used before."""
    return state.where, state.namespace, state.name, state.uid


@dataclass(frozen=True, slots=True)
class JobListChange:
    """Jobs at one moment."""

    states: Sequence[JobState]
    """All jobs, and those that have been deleted since the last moment."""
    changed: Sequence[JobState]
    """Those of them that are new, changed or deleted."""


def watch_list(
    read: Callable[[], Sequence[JobState]],
    *,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[JobListChange]:
    """Yield the jobs now, and again after each change of a state, of the ready nodes, or of what :func:`_visible` has.

    A deleted job is reported once more, as ``Deleting``.

    Args:
        read: Returns the jobs.
        pause: Waits between two readings, for a number of seconds.
        clock: Returns the time in seconds.
    """
    before: dict[JobKey, JobState] | None = None
    while True:
        begun = clock()
        now = {key_of(state): state for state in read()}
        seconds = clock() - begun
        known = before or {}
        gone = [replace(state, state=State.DELETING) for key, state in known.items() if key not in now]
        changed = [state for key, state in now.items() if key not in known or _visible(state) != _visible(known[key])]
        if changed or gone or before is None:
            yield JobListChange([*now.values(), *gone], [*changed, *gone])
        before = now
        pause(min(MOST_SECONDS, max(LEAST_SECONDS, seconds / READING_SHARE)))


def _visible(state: JobState) -> tuple[object, ...]:
    """Return what counts as a change. Steps and rates change all the time: ``top`` shows them."""
    return (
        state.state,
        state.nodes,
        state.queue,
        state.restarts,
        state.world_size,
        state.generation,
        state.first_error,
        state.summary,
    )
