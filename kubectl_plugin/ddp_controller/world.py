"""Current objects of the cluster that decisions need, watched: jobs, pods, nodes, budgets and queues.

Pods that have joined their run are known by the state in their metrics.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from ddp_controller.pod_move import drain_reason
from ddp_controller.quota import ClusterQueueState, cluster_queues
from ddp_controller.running_job import RunningJob, running_job
from ddp_trainer.common.constants import Annotation, GroupState, Label
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.common.safe_text import escape_control_chars
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.resources import Discovery
from kubectl_ddp.backends.cluster.read.jobs import (
    ddpjobs_path,
    of_all,
    path,
    strip_pod,
    with_type_meta,
    without_managers,
)
from kubectl_ddp.backends.cluster.read.pod_output import served
from kubectl_ddp.backends.cluster.read.reflector import Reflector, watch_into_queue
from kubectl_ddp.engines import ENGINES, EngineKind
from kubectl_ddp.errors import DdpError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object, Snapshot
from kubectl_ddp.status.job_state import group_state
from kubectl_ddp.status.metrics_parser import metrics_path, parse
from kubectl_ddp.util.bounded_response import POD_STATE
from kubectl_ddp.util.concurrency import Stop

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


DISCOVERY_SECONDS: Final = 60.0
"""Time between two looks for kinds that were installed meanwhile."""
KUEUE_VERSIONS: Final = ("v1beta2", "v1beta1")
KUEUE_KINDS: Final = {"Workload": "workloads", "LocalQueue": "localqueues", "ClusterQueue": "clusterqueues"}

UNNAMED: Final = ""
"""Value of the label :data:`Label.JOB` in the pods of a TrainJob before the controller has set it."""
MOST_REASON_CHARACTERS: Final = 500
"""Longest reason of a skipped job. An error may quote a whole specification."""

Malformed = list[tuple[Object, str]]
"""Root objects of jobs that could not be read, each with the reason."""


class World:
    """Watched copy of all objects. :attr:`changes` receives an entry for each change."""

    def __init__(
        self, api: Api, *, taints: Mapping[str, str], namespaces: Collection[str] = (), has_ddpjobs: bool = False
    ) -> None:
        """Create a copy of the objects.

        Args:
            api: API server.
            taints: Further taints or conditions of nodes that will go, with their meaning.
            namespaces: Namespaces of the jobs to manage; empty for all.
            has_ddpjobs: True to watch DDPJobs, too.
        """
        self.changes: queue.SimpleQueue[Exception | None] = queue.SimpleQueue()
        self._api = api
        self._stop = Stop()
        self._membership = PodMembership(api, lambda: self.changes.put(None))
        self._taints = taints
        self._places: Sequence[str | None] = [*dict.fromkeys(namespaces)] or [None]
        self._missing: dict[str, tuple[int, float]] = {}
        """Uid of a job → number of its missing pods, and the time at which this process first saw that number."""
        self._roots: list[tuple[EngineKind, Reflector]] = []
        self._pods = [
            Reflector(api, collection("v1", "pods", place), reduce=strip_pod, labelSelector=Label.JOB)
            for place in self._places
        ]
        self._nodes = _reflector(api, "/api/v1/nodes")
        self._budgets = [
            _reflector(api, collection("policy/v1", "poddisruptionbudgets", place)) for place in self._places
        ]
        self._kueue: dict[str, Reflector] = {}
        self.has_ddpjobs = has_ddpjobs
        self._ddpjobs: list[Reflector] = []
        self._snapshots: list[Snapshot] = []
        """Jobs with their pods at the last call of :meth:`jobs`."""
        self._found: tuple[list[RunningJob], Malformed] = ([], [])
        self._revisions: list[str] | None = None
        """Revisions of the objects from which the jobs were read; None if they must be read again."""
        self._all: list[Reflector] = []

    def start(self) -> None:
        """Read all objects, and watch them in threads. Raises the errors of the API server.

        Kinds that are installed later are found within :data:`DISCOVERY_SECONDS`.
        """
        try:
            self._watch_served_kinds()
            self._watch([*self._pods, self._nodes, *self._budgets])
        except DdpError:
            self.stop()
            raise
        threading.Thread(target=self._discover, daemon=True).start()

    def _discover(self) -> None:
        self._stop.wait(DISCOVERY_SECONDS)
        while not self._stop.is_requested:
            with contextlib.suppress(DdpError):  # the server is away, or a right to read the kind is missing
                self._watch_served_kinds()
            self._stop.wait(DISCOVERY_SECONDS)

    def _watch_served_kinds(self) -> None:
        """Watch the kinds of jobs and queues that the cluster serves, and that are not watched yet."""
        discovery, known = Discovery(self._api), {kind.name for kind, _ in self._roots}
        roots = [
            (kind, _reflector(self._api, path(kind, place), labelSelector=Label.JOB))
            for kind in ENGINES.values()
            for place in self._places
            if kind.name not in known and discovery.resource_for_kind(kind.api_version, kind.kind)
        ]
        served = discovery.served_versions("kueue.x-k8s.io") if not self._kueue else ()
        version = next((version for version in KUEUE_VERSIONS if version in served), None)
        kinds = KUEUE_KINDS.items() if version else ()
        kueue = {
            kind: _reflector(self._api, collection(f"kueue.x-k8s.io/{version}", plural, None)) for kind, plural in kinds
        }
        is_new = self.has_ddpjobs and not self._ddpjobs
        is_served = is_new and discovery.resource_for_kind(job_kinds.API_VERSION, job_kinds.KIND)
        ddpjobs = [_reflector(self._api, ddpjobs_path(place)) for place in (self._places if is_served else ())]
        self._watch([*(reflector for _, reflector in roots), *kueue.values(), *ddpjobs])
        self._roots, self._kueue = [*self._roots, *roots], self._kueue or kueue
        self._ddpjobs = [*self._ddpjobs, *ddpjobs]
        self.changes.put(None)

    def _watch(self, reflectors: Sequence[Reflector]) -> None:
        """Read and watch further objects. Raises the errors of the API server."""
        for reflector in reflectors:
            reflector.read()
        self._all = [*self._all, *reflectors]
        for reflector in reflectors:
            threading.Thread(target=watch_into_queue, args=(reflector, self.changes), daemon=True).start()
        if self._stop.is_requested:  # meanwhile
            self.stop()

    def stop(self) -> None:
        """End all watches."""
        self._stop.request()
        for reflector in self._all:
            reflector.stop()
        self._membership.stop()

    def jobs(self) -> tuple[list[RunningJob], Malformed]:
        """Return all jobs, and those whose objects are malformed, which the controller leaves alone."""
        revisions = [reflector.revision for reflector in self._all]
        if revisions != self._revisions:
            self._revisions = None if self._read_jobs() else revisions
        found, malformed = self._found
        return self._with_missing_since(found, time.time()), malformed

    def _read_jobs(self) -> bool:
        """Read all jobs from their objects. Returns true if some of their pods may join without a change of these."""
        drain_reasons = {
            node["metadata"]["name"]: why for node in self._nodes.objects() if (why := drain_reason(node, self._taints))
        }
        roots = [
            with_type_meta(kind, root)
            for kind, reflector in self._roots
            for root in reflector.objects()
            if _is_submitted(root)
        ]
        found: list[RunningJob] = []
        malformed: Malformed = []
        has_unjoined = False
        pods = {str(pod["metadata"]["uid"]): pod for reflector in self._pods for pod in reflector.objects()}
        self._membership.keep_only(pods)
        self._snapshots = of_all(roots, list(pods.values()), lambda _: None)
        for snapshot in self._snapshots:
            try:
                running = running_job(snapshot, drain_reasons, self._membership.has_joined)
                pending_members = running.pending_members(time.time())
                has_unjoined |= bool(pending_members)
                self._membership.check(pods[pod.uid] for pod in pending_members)
                found.append(running)
            except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
                reason = f"{type(error).__name__}: {error}"[:MOST_REASON_CHARACTERS]
                malformed.append((snapshot.job, escape_control_chars(reason)))
        self._found = found, malformed
        return has_unjoined

    def _with_missing_since(self, jobs: Sequence[RunningJob], now: float) -> list[RunningJob]:
        """Return the jobs with the time since which pods have been missing, which no object has."""
        known, self._missing = self._missing, {}
        for job in jobs:
            if job.is_active and job.pods and job.missing:
                count, since = known.get(job.uid, (0, now))
                self._missing[job.uid] = (job.missing, since if count == job.missing else now)
        since_of = {uid: since for uid, (_, since) in self._missing.items()}
        return [replace(job, missing_since=since_of.get(job.uid)) for job in jobs]

    def ddpjobs(self) -> list[Object]:
        """Return all DDPJobs, oldest first."""
        found = [{**job_kinds.HEADER, **job} for reflector in self._ddpjobs for job in reflector.objects()]
        return sorted(found, key=lambda job: str(job["metadata"].get("creationTimestamp")))

    def runs(self) -> Mapping[str, Snapshot]:
        """Return the root object with pods of each DDPJob, by its uid, as of the last call of :meth:`jobs`."""
        return {
            str(owner["uid"]): snapshot
            for snapshot in self._snapshots
            for owner in snapshot.job["metadata"].get("ownerReferences") or ()
            if owner.get("kind") == job_kinds.KIND
        }

    def unlabeled_pods(self) -> list[Object]:
        """Return the pods of TrainJobs that have no labels of their job yet (:mod:`ddp_controller.train_jobs`)."""
        return [
            pod
            for reflector in self._pods
            for pod in reflector.objects()
            if pod["metadata"]["labels"][Label.JOB] == UNNAMED
        ]

    def train_jobs(self) -> list[Snapshot]:
        """Return the TrainJobs of ClusterTrainingRuntimes, as of the last call of :meth:`jobs`."""
        return [snapshot for snapshot in self._snapshots if job_kinds.is_of_cluster_runtime(snapshot.job)]

    def budgets(self) -> list[Object]:
        """Return all PodDisruptionBudgets of the managed namespaces."""
        return [budget for budgets in self._budgets for budget in budgets.objects()]

    def cluster_queues(self, jobs: Sequence[RunningJob]) -> list[ClusterQueueState]:
        """Return the queues with elastic jobs; empty without Kueue."""
        if not self._kueue:
            return []
        workloads, local_queues, clusters = (self._kueue[kind].objects() for kind in KUEUE_KINDS)
        return [*cluster_queues(jobs, workloads, local_queues, clusters)]


def _reflector(api: Api, path: str, **query: str) -> Reflector:
    """Return the copy of a collection without ``managedFields``, which are a third of most objects."""
    return Reflector(api, path, reduce=without_managers, **query)


def _is_submitted(job: Object) -> bool:
    """Return whether an object has the specification of a job, and was not created for another object."""
    metadata = job["metadata"]
    is_made = any(owner.get("controller") for owner in metadata.get("ownerReferences") or ())
    return Annotation.SPEC in (metadata.get("annotations") or {}) and not is_made
