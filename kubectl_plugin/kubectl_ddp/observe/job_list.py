"""Jobs of several places, and their states, within the time that a person waits for a list; and their watch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.observe.scrape import ScrapeLimit, observe_all
from kubectl_ddp.status.job_state import JobState, State

_TIMEOUT_SECONDS: Final = {"local": 0.12}
"""Seconds to wait for pods, by place. On this machine, pods answer immediately unless they are overloaded."""

_CLUSTER_TIMEOUT_SECONDS: Final = 1.0
"""Seconds to wait for pods in a cluster, where a network policy may block requests without an error."""

_MOST: Final = ScrapeLimit(of_each=2, in_all=48)
"""Maximum number of pods to scrape: of many jobs, those of the newest. ``status`` scrapes all pods of a job."""


def read_jobs(
    backends: Sequence[Backend], *, all_namespaces: bool, warn: Callable[[str], None]
) -> list[tuple[Backend, Snapshot]]:
    """Return the jobs of these backends, oldest first per backend.

    Args:
        backends: Places to read.
        all_namespaces: True to read all namespaces.
        warn: Called with the error of each backend that fails, if another one has jobs.

    Raises:
        DdpError: The first error, if no job is found.
    """
    found: list[tuple[Backend, Snapshot]] = []
    errors: list[DdpError] = []
    for backend in backends:
        try:
            snapshots = backend.jobs(all_namespaces=all_namespaces)
        except DdpError as error:
            errors.append(error)
            continue
        found += [(backend, snapshot) for snapshot in snapshots]
    if errors and not found:
        raise errors[0]
    for failed in errors:
        warn(str(failed))
    return found


def observe_jobs(found: Sequence[tuple[Backend, Snapshot]], *, for_table: bool = False) -> list[JobState]:
    """Return the states of jobs, with the metrics of their first pods. With ``for_table``, only what a table shows."""
    states = []
    for backend in dict.fromkeys(backend for backend, _ in found):
        snapshots = [snapshot for where, snapshot in found if where is backend]
        timeout = _TIMEOUT_SECONDS.get(backend.where, _CLUSTER_TIMEOUT_SECONDS)
        states += observe_all(backend, snapshots, timeout=timeout, most=_MOST, for_table=for_table)
    return states


LEAST_SECONDS: Final = 0.5
MOST_SECONDS: Final = 10.0
READING_SHARE: Final = 0.1
"""Share of the time that reading may take: a list of 10,000 pods is read less often than one of 10."""


_VISIBLE: Final = ("state", "nodes", "queue", "first_error", "summary")
"""Fields whose change is reported."""

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
    """New, changed and deleted jobs."""


def watch_list(
    read: Callable[[], Sequence[JobState]],
    *,
    pause: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[JobListChange]:
    """Yield the jobs now, and again after a change of a state, of the ready nodes, of a queue, or of a result.

    More restarts are a change too. Steps and rates are not: ``top`` shows them. A deleted job is reported once more, as
    ``Deleting``.

    Args:
        read: Returns the jobs.
        pause: Waits between two readings, for a number of seconds.
        clock: Returns the time in seconds.
    """
    before: dict[JobKey, JobState] | None = None
    while True:
        started = clock()
        now = {key_of(state): state for state in read()}
        seconds = clock() - started
        known = before or {}
        deleting = [replace(state, state=State.DELETING) for key, state in known.items() if key not in now]
        changed = [state for key, state in now.items() if key not in known or _has_changed(known[key], state)]
        if changed or deleting or before is None:
            yield JobListChange([*now.values(), *deleting], [*changed, *deleting])
        before = {key: _with_restarts(state, known.get(key)) for key, state in now.items()}
        pause(min(MOST_SECONDS, max(LEAST_SECONDS, seconds / READING_SHARE)))


def _has_changed(old: JobState, new: JobState) -> bool:
    is_equal = all(getattr(old, name) == getattr(new, name) for name in _VISIBLE)
    return not is_equal or sum(new.restarts.values()) > sum(old.restarts.values())


def _with_restarts(new: JobState, old: JobState | None) -> JobState:
    """Return the state with the most restarts so far. They are unknown while the pods do not answer."""
    if old is None or sum(new.restarts.values()) >= sum(old.restarts.values()):
        return new
    return replace(new, restarts=old.restarts)
