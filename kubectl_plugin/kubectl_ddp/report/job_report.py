"""Report of a job from its backend, and the file that it is written to."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError, Forbidden
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.observe.result_annotations import persist_result
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.report.compose import Report, report
from kubectl_ddp.status.termination_message import workers

if TYPE_CHECKING:
    from kubectl_ddp.report.series import Series
    from kubectl_ddp.status.job_state import JobState

_MARGIN_SECONDS: Final = 30.0
"""Seconds after the job's end to include in the query, for the samples of the last scrape."""


def report_of(backend: Backend, name: str, *, url: str | None = None, warn: Callable[[str], None]) -> Report:
    """Return the report of a job.

    Args:
        backend: Place of the job.
        name: Name of the job.
        url: Prometheus server to read the numbers from (default: the pods of the job have kept them).
        warn: Called with a warning if events cannot be read.

    Raises:
        NotFound: If the job does not exist.
    """
    snapshot = backend.job(name, events=False)
    events = _events(backend, name, warn)
    state = observe(backend, replace(snapshot, events=tuple(events)))
    persist_result(backend, snapshot.job, state)
    now = time.time()
    series, words = _series(backend, snapshot, state, url, now)
    return report(snapshot, state, events, series, now=now, source=words)


def write_page(text: str, path: Path) -> None:
    """Write a page to a file that only its owner can read. Raises DdpError.

    Errors and events of a job may contain confidential text.
    """
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise DdpError(f"'{path}' cannot be written: {error.strerror}.", hint="Name another file.") from error


def _events(backend: Backend, name: str, warn: Callable[[str], None]) -> list[Object]:
    try:
        return backend.events(name)
    except Forbidden as error:
        warn(f"The page has no events, and takes what happened from the objects alone: {error.message}")
        return []


def _series(
    backend: Backend, snapshot: Snapshot, state: JobState, url: str | None, now: float
) -> tuple[list[Series], str]:
    """Return the series, and their origin as a sentence."""
    if url is None:
        from kubectl_ddp.report.series import load_series  # noqa: PLC0415

        return load_series(backend, snapshot), "Numbers are those that the pods of the job have kept themselves."
    from kubectl_ddp.report.prometheus import TimeRange, query_series, redact_url  # noqa: PLC0415

    start = state.created if state.created is not None else now - 86_400
    span = TimeRange(start=start, end=max(start + 1, min(now, (state.finished or now) + _MARGIN_SECONDS)))
    namespace = state.namespace if backend.where != "local" else None
    pods = {
        str(pod.get("status", {}).get("podIP") or ""): str(pod["metadata"]["name"]) for pod in workers(snapshot.pods)
    }
    return query_series(
        url, state.name, namespace, span, pods
    ), f"Numbers are those of Prometheus at {redact_url(url)}."
