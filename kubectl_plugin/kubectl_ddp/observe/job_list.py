"""Jobs of several places, and their states, within the time that a person waits for a list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.observe.scrape import ScrapeLimit, observe_all
from kubectl_ddp.status.job_state import JobState

_PATIENCE_SECONDS: Final = {"local": 0.12}
"""Seconds to wait for pods, by place. On this machine, pods answer immediately unless they are overloaded."""

_CLUSTER_PATIENCE_SECONDS: Final = 1.0
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
        patience = _PATIENCE_SECONDS.get(backend.where, _CLUSTER_PATIENCE_SECONDS)
        states += observe_all(backend, snapshots, patience=patience, most=_MOST, for_table=for_table)
    return states
