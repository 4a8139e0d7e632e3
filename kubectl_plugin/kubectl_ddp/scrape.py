"""Asks the pods of a job for their metrics, all at once, and does not wait for those that do not answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kubectl_ddp.backend import Backend, Object, Snapshot
from kubectl_ddp.errors import DdpError
from kubectl_ddp.evidence import workers
from kubectl_ddp.exposition import Samples, parse
from kubectl_ddp.state import JobState, job_state

_AT_ONCE: Final = 16
"""Requests in flight: an API server's proxy is not ours alone."""


def scrape(backend: Backend, snapshot: Snapshot) -> dict[str, Samples]:
    """What the running worker pods of a job say, by name; pods that do not answer are left out."""
    return scrape_all(backend, [snapshot])[0]


def scrape_all(backend: Backend, snapshots: Sequence[Snapshot]) -> list[dict[str, Samples]]:
    """The same for many jobs, in one go."""
    asked = [
        (index, pod) for index, snapshot in enumerate(snapshots) for pod in workers(snapshot.pods) if _is_running(pod)
    ]
    if len(asked) <= 1:  # most lists of a laptop: no threads
        answers = [_ask(backend, pod) for _, pod in asked]
    else:
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 - 10 ms to import

        with ThreadPoolExecutor(max_workers=min(_AT_ONCE, len(asked))) as threads:
            answers = list(threads.map(lambda one: _ask(backend, one[1]), asked))
    told: list[dict[str, Samples]] = [{} for _ in snapshots]
    for (index, pod), answer in zip(asked, answers, strict=True):
        if answer is not None:
            told[index][str(pod["metadata"]["name"])] = answer
    return told


def _is_running(pod: Object) -> bool:
    statuses = pod.get("status", {}).get("containerStatuses") or ()
    return any("running" in (status.get("state") or {}) for status in statuses)


def _ask(backend: Backend, pod: Object) -> Samples | None:
    try:
        return parse(backend.metrics(pod))
    except DdpError:  # it starts, it ends, or a network policy is in the way: the job is told of without it
        return None


def observe(backend: Backend, snapshot: Snapshot, before: Mapping[str, Samples] | None = None) -> JobState:
    """What a job is doing, with what its pods say now."""
    return job_state(snapshot, scrape(backend, snapshot), where=backend.where, before=before)


def observe_all(backend: Backend, snapshots: Sequence[Snapshot]) -> list[JobState]:
    """The same for many jobs, in one go."""
    told = scrape_all(backend, snapshots)
    return [job_state(one, samples, where=backend.where) for one, samples in zip(snapshots, told, strict=True)]
