"""Asks the pods of a job for their metrics, all at once, and does not wait for those that do not answer."""

from __future__ import annotations

import contextlib
import math
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.backend import Backend, Object, Snapshot
from kubectl_ddp.errors import DdpError
from kubectl_ddp.evidence import is_running, workers
from kubectl_ddp.exposition import LIVE, Samples, parse
from kubectl_ddp.state import JobState, job_state

_AT_FIRST: Final = 4
"""Who asks. More are no faster where pods answer at once, and each needs a connection of its own."""

_AT_MOST: Final = 16
"""Requests in flight: an API server's proxy is not ours alone."""

_SLOW_SECONDS: Final = 0.01
"""Without any answer, after which one more asks."""


@dataclass(frozen=True, slots=True)
class ScrapeLimit:
    """How many pods are asked at most."""

    of_each: int
    """Of every job: the first, on which rank 0 is unless pods were lost, tells how far all of it is."""
    in_all: int


def scrape(backend: Backend, snapshot: Snapshot) -> dict[str, Samples]:
    """What the running worker pods of a job say, by name; pods that do not answer are left out."""
    return scrape_all(backend, [snapshot])[0]


def scrape_all(
    backend: Backend, snapshots: Sequence[Snapshot], *, patience: float | None = None, most: ScrapeLimit | None = None
) -> list[dict[str, Samples]]:
    """The same for many jobs, in one go.

    The first pod of every job is asked before the second of any, and the jobs that began last are asked first, so that
    the pods that are left out are those that are missed least.

    Args:
        backend: where they run.
        snapshots: the jobs.
        patience: seconds after which pods that have not answered yet are left out; a pod's own time when None.
        most: how many pods are asked; every one when None.
    """
    running = [[pod for pod in workers(snapshot.pods) if is_running(pod)] for snapshot in snapshots]
    of_each, in_all = (most.of_each, most.in_all) if most is not None else (None, None)
    turns = [(turn, -index) for index, pods in enumerate(running) for turn, _ in enumerate(pods[:of_each])]
    asked = [(-index, running[-index][turn]) for turn, index in sorted(turns)[:in_all]]
    told: list[dict[str, Samples]] = [{} for _ in snapshots]
    for index, name, samples in _ScrapePool(backend, asked).iter_results(patience):
        if samples is not None:
            told[index][name] = samples
    return told


class _ScrapePool:
    """Pods that are to be asked, each with the index of its job, and those who ask them."""

    def __init__(self, backend: Backend, asked: Iterable[tuple[int, Object]]) -> None:
        self._backend = backend
        self._waiting = deque(asked)
        self._told: queue.SimpleQueue[tuple[int, str, Samples | None]] = queue.SimpleQueue()
        self._asking = 0

    def iter_results(self, patience: float | None) -> Iterator[tuple[int, str, Samples | None]]:
        """Index of the job, name of the pod, and what it said, as it comes; the rest is left out after the patience."""
        end = math.inf if patience is None else time.monotonic() + patience
        left = len(self._waiting)
        for _ in range(_AT_FIRST):
            self._start_thread()
        while left and (remaining := end - time.monotonic()) > 0:
            may_ask = bool(self._waiting) and self._asking < _AT_MOST
            try:
                yield self._told.get(timeout=min(remaining, _SLOW_SECONDS if may_ask else threading.TIMEOUT_MAX))
            except queue.Empty:
                if may_ask:
                    self._start_thread()
            else:
                left -= 1

    def _start_thread(self) -> None:
        if self._waiting:
            self._asking += 1
            # A daemon: a pod that does not answer must not hold up the end of the command.
            threading.Thread(target=self._scrape_queued_pods, daemon=True).start()

    def _scrape_queued_pods(self) -> None:
        with contextlib.suppress(IndexError):
            while True:
                index, pod = self._waiting.popleft()
                self._told.put((index, str(pod["metadata"]["name"]), _scrape_pod(self._backend, pod)))


def _scrape_pod(backend: Backend, pod: Object) -> Samples | None:
    try:
        return parse(backend.metrics(pod, LIVE))
    except DdpError:  # it starts, it ends, or a network policy is in the way: the job is told of without it
        return None


def observe(backend: Backend, snapshot: Snapshot, before: Mapping[str, Samples] | None = None) -> JobState:
    """What a job is doing, with what its pods say now."""
    return job_state(snapshot, scrape(backend, snapshot), where=backend.where, before=before)


def observe_all(
    backend: Backend, snapshots: Sequence[Snapshot], *, patience: float | None = None, most: ScrapeLimit | None = None
) -> list[JobState]:
    """The same for many jobs, in one go; ``patience`` and ``most`` as in :func:`scrape_all`."""
    told = scrape_all(backend, snapshots, patience=patience, most=most)
    return [job_state(one, samples, where=backend.where) for one, samples in zip(snapshots, told, strict=True)]
