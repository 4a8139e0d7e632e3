"""State of a watched job for a display, with metrics of some pods and the place in the queue, read at intervals."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from kubectl_ddp.backends.base import Backend
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import Snapshot
from kubectl_ddp.observe.scrape import ScrapeLimit, scrape_all
from kubectl_ddp.status.job_state import JobState, job_state
from kubectl_ddp.status.metrics_parser import Samples

SCRAPE_SECONDS: Final = 1.0
"""Time between two scrapes."""
_PODS: Final = ScrapeLimit(of_each=8, in_all=8)
"""Pods that are scraped. The first one reports the steps of the job, unless pods were lost."""
_PATIENCE_SECONDS: Final = 1.0
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
            self._samples = scrape_all(self._backend, [snapshot], patience=_PATIENCE_SECONDS, most=_PODS)[0]
            self._scraped = self._clock()
        return self.with_position(job_state(snapshot, self._samples, where=self._backend.where))

    def with_position(self, state: JobState) -> JobState:
        """Return the state with the place in the queue, if the job waits in one. Errors are ignored."""
        if state.queue is None or state.queue.is_admitted or state.queue.is_held:
            return state
        if self._clock() - self._placed >= _POSITION_SECONDS:
            with contextlib.suppress(DdpError):
                queue = self._backend.job(state.name, events=False).queued
                # A job that is being admitted has none any more.
                self._position = (queue.position if queue is not None else None) or self._position
            self._placed = self._clock()
        return replace(state, queue=replace(state.queue, position=self._position))
