"""Pods that have joined their run, by the state in their metrics.

Kubernetes has no sign of this: a pod is ready as soon as its container runs, and its workers import for seconds after
that. :class:`PodMembership` reads the metrics of pods in threads, through the API server.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ddp_trainer.common.constants import GroupState
from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.read.pod_metrics import served
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.status.job_state import group_state
from kubectl_ddp.status.metrics_parser import metrics_path, parse
from kubectl_ddp.util.bounded_answer import POD_STATE

JOINED: Final = frozenset({GroupState.SPARE, GroupState.RUNNING})
AGAIN_SECONDS: Final = 1.0
"""Least time between two requests to one pod."""
SLOW_FACTOR: Final = 10
"""Share of the time of its request for which a pod is left alone, so that slow pods do not take all threads."""
AT_ONCE: Final = 8
"""Largest number of requests at a time."""


class PodMembership:
    """Record of the pods that have joined their run, by the answers of their launchers."""

    def __init__(self, api: Api, changed: Callable[[], None], *, clock: Callable[[], float] = time.monotonic) -> None:
        """Create an empty record.

        Args:
            api: API server.
            changed: Called from a thread when a pod has joined.
            clock: Monotonic time in seconds.
        """
        self._api = api
        self._changed = changed
        self._clock = clock
        self._lock = threading.Lock()
        self._answers: dict[str, bool] = {}
        self._due: dict[str, float] = {}
        """Uid → earliest time of its next request; infinite while one runs."""
        self._pool = ThreadPoolExecutor(AT_ONCE)

    def has_joined(self, uid: str) -> bool | None:
        """Return whether a pod has joined; None if it has not answered."""
        return self._answers.get(uid)

    def check(self, pods: Iterable[Object]) -> None:
        """Start to read the state of pods that have not joined yet."""
        with self._lock:
            for pod in pods:
                uid = str(pod["metadata"]["uid"])
                if not self._answers.get(uid) and self._clock() >= self._due.get(uid, 0.0):
                    self._due[uid] = float("inf")
                    self._pool.submit(self._read, pod, uid)

    def keep_only(self, uids: Collection[str]) -> None:
        """Drop the answers of all pods but these."""
        with self._lock:
            for record in (self._answers, self._due):
                for uid in record.keys() - set(uids):
                    del record[uid]

    def stop(self) -> None:
        """Start no further request."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, pod: Object, uid: str) -> None:
        began = self._clock()
        try:
            state = group_state(parse(served(self._api, pod, metrics_path([Metric.GROUP_STATE]), POD_STATE)))
        except DdpError:  # it has not started to serve them, or a network policy forbids it
            state = ""
        with self._lock:
            if state:
                self._answers[uid] = state in JOINED
            now = self._clock()
            self._due[uid] = now + AGAIN_SECONDS + SLOW_FACTOR * (now - began)
        if state in JOINED:
            self._changed()
