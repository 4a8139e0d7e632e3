"""Asks the pods of a job for their metrics, all at once, and does not wait for those that do not answer."""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubectl_ddp.backend import Backend, Object, Snapshot
from kubectl_ddp.errors import DdpError
from kubectl_ddp.evidence import is_running, workers
from kubectl_ddp.exposition import Samples, parse
from kubectl_ddp.state import JobState, job_state

_AT_ONCE: Final = 16
"""Requests in flight: an API server's proxy is not ours alone."""


@dataclass(frozen=True, slots=True)
class Most:
    """How many pods are asked at most."""

    of_each: int
    """Of every job: the first, on which rank 0 is unless pods were lost, tells how far all of it is."""
    in_all: int


def scrape(backend: Backend, snapshot: Snapshot) -> dict[str, Samples]:
    """What the running worker pods of a job say, by name; pods that do not answer are left out."""
    return scrape_all(backend, [snapshot])[0]


def scrape_all(
    backend: Backend, snapshots: Sequence[Snapshot], *, patience: float | None = None, most: Most | None = None
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
    waiting: queue.SimpleQueue[tuple[int, Object]] = queue.SimpleQueue()
    answers: queue.SimpleQueue[tuple[int, str, Samples | None]] = queue.SimpleQueue()
    for each in asked:
        waiting.put(each)
    for _ in range(min(_AT_ONCE, len(asked))):
        # Daemons: a pod that does not answer must not hold up the end of the command.
        threading.Thread(target=_ask_all, args=(backend, waiting, answers), daemon=True).start()
    told: list[dict[str, Samples]] = [{} for _ in snapshots]
    limit = time.monotonic() + patience if patience is not None else None
    with contextlib.suppress(queue.Empty):
        for _ in asked:
            index, name, samples = answers.get(timeout=None if limit is None else max(0.0, limit - time.monotonic()))
            if samples is not None:
                told[index][name] = samples
    return told


def _ask_all(
    backend: Backend,
    waiting: queue.SimpleQueue[tuple[int, Object]],
    answers: queue.SimpleQueue[tuple[int, str, Samples | None]],
) -> None:
    with contextlib.suppress(queue.Empty):
        while True:
            index, pod = waiting.get_nowait()
            answers.put((index, str(pod["metadata"]["name"]), _ask(backend, pod)))


def _ask(backend: Backend, pod: Object) -> Samples | None:
    try:
        return parse(backend.metrics(pod))
    except DdpError:  # it starts, it ends, or a network policy is in the way: the job is told of without it
        return None


def observe(backend: Backend, snapshot: Snapshot, before: Mapping[str, Samples] | None = None) -> JobState:
    """What a job is doing, with what its pods say now."""
    return job_state(snapshot, scrape(backend, snapshot), where=backend.where, before=before)


def observe_all(
    backend: Backend, snapshots: Sequence[Snapshot], *, patience: float | None = None, most: Most | None = None
) -> list[JobState]:
    """The same for many jobs, in one go; ``patience`` and ``most`` as in :func:`scrape_all`."""
    told = scrape_all(backend, snapshots, patience=patience, most=most)
    return [job_state(one, samples, where=backend.where) for one, samples in zip(snapshots, told, strict=True)]
