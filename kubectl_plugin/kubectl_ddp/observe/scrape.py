"""Concurrent scraping of the pods' metrics, once or at intervals, without waiting for pods that do not answer."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.status.job_state import JobState, job_state
from kubectl_ddp.status.metrics_parser import LIVE, TABLE, Samples, iter_samples, parse
from kubectl_ddp.status.termination_message import is_running, workers
from kubectl_ddp.util.concurrency import map_in_threads

_AT_FIRST: Final = 4
"""Initial number of threads. Each needs a connection, and more do not help if pods answer immediately."""

_AT_MOST: Final = 16
"""Maximum number of concurrent requests, because the API server's proxy is shared with others."""

_SLOW_SECONDS: Final = 0.01
"""Seconds without any answer after which another thread starts."""


@dataclass(frozen=True, slots=True)
class ScrapeLimit:
    """Maximum number of pods to scrape."""

    of_each: int
    """Pods per job, in order. The first pod has rank 0 unless pods were lost, and reports the progress of the job."""
    in_all: int


def scrape(backend: Backend, snapshot: Snapshot) -> dict[str, Samples]:
    """Return the metrics of a job's running worker pods by name, without the pods that do not answer."""
    return scrape_all(backend, [snapshot])[0]


def scrape_all(
    backend: Backend,
    snapshots: Sequence[Snapshot],
    *,
    timeout: float | None = None,
    most: ScrapeLimit | None = None,
    families: Collection[str] = LIVE,
) -> list[dict[str, Samples]]:
    """Return the metrics of many jobs' running worker pods, one map of pod names per job.

    The first pod of every job is scraped before the second of any, and newer jobs before older ones. Thus the pods that
    are left out are the least important ones. If the group of a job has fewer nodes than the job has pods, more of its
    pods are scraped, because one of them may be unable to join.

    Args:
        backend: Place where the jobs run.
        snapshots: The jobs.
        timeout: Seconds after which pods without an answer are left out (default: the timeout of each request).
        most: Maximum number of pods to scrape (default: all).
        families: Metric families to read.
    """
    running = [
        [pod for pod in workers(snapshot.pods) if is_running(pod)] if job_kinds.has_metrics(snapshot.job) else []
        for snapshot in snapshots
    ]
    of_each, in_all = (most.of_each, most.in_all) if most is not None else (None, None)
    turns = [(turn, -index) for index, pods in enumerate(running) for turn, _ in enumerate(pods[:of_each])]
    requests = [(-index, running[-index][turn]) for turn, index in sorted(turns)[:in_all]]
    results: list[dict[str, Samples]] = [{} for _ in snapshots]
    for turn in (requests, None):
        rest = turn if turn is not None else _pods_of_short_groups(snapshots, running, results, most)
        for index, name, samples in _ScrapePool(backend, rest, families).iter_results(timeout):
            if samples is not None:
                results[index][name] = samples
    return results


def _pods_of_short_groups(
    snapshots: Sequence[Snapshot],
    running: Sequence[Sequence[Object]],
    samples: Sequence[Mapping[str, Samples]],
    most: ScrapeLimit | None,
) -> list[tuple[int, Object]]:
    """Return the unscraped pods, with the index of their job, of jobs whose group has fewer nodes than the job pods."""
    if most is None:
        return []
    found = []
    for index, pods in enumerate(running):
        size = max((pod_samples.value(Metric.NODES) or 0.0 for pod_samples in samples[index].values()), default=0.0)
        if 0 < size < len(pods) - job_kinds.spares(snapshots[index].job):
            found += [(index, pod) for pod in pods[most.of_each :]]
    return found[: most.in_all]


class _ScrapePool:
    """Thread pool that scrapes pods. Each pod has the index of its job."""

    def __init__(self, backend: Backend, requests: Iterable[tuple[int, Object]], families: Collection[str]) -> None:
        self._backend = backend
        self._families = families
        self._waiting = deque(requests)
        self._answers: queue.SimpleQueue[tuple[int, str, Samples | None]] = queue.SimpleQueue()
        self._threads = 0

    def iter_results(self, timeout: float | None) -> Iterator[tuple[int, str, Samples | None]]:
        """Yield job index, pod name and metrics as they arrive. Pods without an answer are left out after ``timeout``
        seconds.
        """
        end = math.inf if timeout is None else time.monotonic() + timeout
        left = len(self._waiting)
        for _ in range(_AT_FIRST):
            self._start_thread()
        while left and (remaining := end - time.monotonic()) > 0:
            may_start = bool(self._waiting) and self._threads < _AT_MOST
            try:
                yield self._answers.get(timeout=min(remaining, _SLOW_SECONDS if may_start else threading.TIMEOUT_MAX))
            except queue.Empty:
                if may_start:
                    self._start_thread()
            else:
                left -= 1

    def _start_thread(self) -> None:
        if self._waiting:
            self._threads += 1
            # A daemon thread, so that a pod that does not answer does not delay the exit of the command.
            threading.Thread(target=self._scrape_queued_pods, daemon=True).start()

    def _scrape_queued_pods(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                index, pod = self._waiting.popleft()
                self._answers.put((index, str(pod["metadata"]["name"]), self._scrape_pod(pod)))

    def _scrape_pod(self, pod: Object) -> Samples | None:
        try:
            return parse(self._backend.metrics(pod, self._families))
        except DdpError:  # starting, ending, or blocked by a network policy
            return None


def observe(backend: Backend, snapshot: Snapshot) -> JobState:
    """Return the state of a job, with the current metrics of its pods."""
    return job_state(snapshot, scrape(backend, snapshot), where=backend.where)


def observe_all(
    backend: Backend,
    snapshots: Sequence[Snapshot],
    *,
    timeout: float | None = None,
    most: ScrapeLimit | None = None,
    for_table: bool = False,
) -> list[JobState]:
    """Return the states of many jobs; ``timeout`` and ``most`` as in :func:`scrape_all`.

    With ``for_table``, only with what :func:`~kubectl_ddp.status.job_tables.job_table` shows.
    """
    results = scrape_all(backend, snapshots, timeout=timeout, most=most, families=TABLE if for_table else LIVE)
    return [
        job_state(one, samples, where=backend.where, with_startup=not for_table)
        for one, samples in zip(snapshots, results, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class Sample:
    """Current value of one series of a pod."""

    pod: str
    name: str
    labels: Mapping[str, str]
    value: float


def read_samples(backend: Backend, snapshot: Snapshot, families: Collection[str] = ()) -> list[Sample]:
    """Return the samples of a job's running worker pods, without the pods that do not answer.

    Args:
        backend: Place of the job.
        snapshot: The job.
        families: Metric families to return (default: all).
    """

    def of_pod(pod: Object) -> list[Sample]:
        try:
            text = backend.metrics(pod, families)
        except DdpError:  # starting, ending, or blocked by a network policy
            return []
        name = str(pod["metadata"]["name"])
        return [
            Sample(name, family, labels, value)
            for family, labels, value in iter_samples(text)
            if not families or family in families
        ]

    running = [pod for pod in workers(snapshot.pods) if is_running(pod)]
    return [sample for samples in map_in_threads(of_pod, running) for sample in samples]


SCRAPE_SECONDS: Final = 1.0
"""Time between two scrapes."""
_PODS: Final = ScrapeLimit(of_each=8, in_all=8)
"""Pods that are scraped. The first one reports the steps of the job, unless pods were lost."""
_TIMEOUT_SECONDS: Final = 1.0
"""Time after which a pod without an answer is left out. It must not delay the end of a wait."""
_POSITION_SECONDS: Final = 5.0
"""Time between two reads of the place in the queue, which a watch does not show."""


class LiveState:
    """Builds the states of one job from the snapshots of a watch."""

    def __init__(self, backend: Backend, clock: Callable[[], float] = time.monotonic) -> None:
        """Create a builder.

        Args:
            backend: Place where the job runs.
            clock: Source of monotonic time.
        """
        self._backend, self._clock = backend, clock
        self._samples: Mapping[str, Samples] = {}
        self._position: int | None = None
        self._scraped = self._placed = -math.inf

    def of(self, snapshot: Snapshot) -> JobState:
        """Return the state of the job, with metrics that are at most a second old."""
        if self._clock() - self._scraped >= SCRAPE_SECONDS:
            self._samples = scrape_all(self._backend, [snapshot], timeout=_TIMEOUT_SECONDS, most=_PODS)[0]
            self._scraped = self._clock()
        return self.with_position(job_state(snapshot, self._samples, where=self._backend.where))

    def with_position(self, state: JobState) -> JobState:
        """Return the state with the place in the queue, if the job waits in one. Errors are ignored."""
        if state.queue is None or state.queue.is_admitted or state.queue.is_held:
            return state
        if self._clock() - self._placed >= _POSITION_SECONDS:
            with contextlib.suppress(DdpError):
                queue = self._backend.job(state.name, events=False).queued
                # A job that is being admitted no longer has a position.
                self._position = (queue.position if queue is not None else None) or self._position
            self._placed = self._clock()
        return replace(state, queue=replace(state.queue, position=self._position))
