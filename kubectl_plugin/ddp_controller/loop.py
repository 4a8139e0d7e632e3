"""Loop of the controller: read the watched objects, decide, act, and wait for a change or for the next tick.

The process can end at any moment: what it remembers between two passes, its successor reads or measures again.
"""

from __future__ import annotations

import contextlib
import json
import queue
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from ddp_controller.executor import delete_budgets, execute, report_skipped
from ddp_controller.lease import Lease
from ddp_controller.metrics import ControllerMetrics
from ddp_controller.pod_move import CORDONED, decide_budget, decide_move, is_managed, orphaned_budgets
from ddp_controller.quota import decide_sizes
from ddp_controller.reconciler import Reconciler
from ddp_controller.running_job import Decision, Evict, Resize, RunningJob, SetBudget, Timing
from ddp_controller.train_jobs import TrainJobs
from ddp_controller.world import Malformed, World
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.backends.cluster.http.api_errors import Conflict
from kubectl_ddp.backends.cluster.read import reflector
from kubectl_ddp.errors import DdpError, Forbidden, Unreachable
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.concurrency import Stop

Result = TypeVar("Result")

TICK_SECONDS: Final = 1.0
"""Longest wait between two passes: some decisions depend on time."""
PAUSE_SECONDS: Final = 5.0
"""Pause of a job after a refused decision, in seconds."""
DRAIN_SECONDS: Final = 15.0
"""Time in which a drain evicts a pod that may leave. A drain that was refused tries again after 5 to 10 s."""

MOST_REPORTS: Final = 10
"""Most skipped jobs that one pass reports. The next pass reports the others."""


@dataclass(kw_only=True)
class Controller:
    """One controller process."""

    api: Api
    world: World
    lease: Lease
    timing: Timing
    metrics: ControllerMetrics
    stop: Stop
    check_rights: Callable[[], None]
    """Raises Forbidden if a right is missing. It is called when a request was denied."""
    clock: Callable[[], float] = time.monotonic
    """Monotonic time in seconds."""
    reconciler: Reconciler = field(init=False)
    train_jobs: TrainJobs = field(init=False)
    _paused: dict[tuple[str, bool], float] = field(default_factory=dict)
    """Key of a job, and True for its budget → time until which nothing is decided about it again."""
    _skipped: dict[str, str] = field(default_factory=dict)
    """Uid of a job that is left alone → reason that its event has."""
    _may_leave: dict[str, float] = field(default_factory=dict)
    """Uid of a pod on a cordoned node → time since which it may leave, if it could at each pass since."""

    def __post_init__(self) -> None:
        self.reconciler = Reconciler(self.api, log=log)
        self.train_jobs = TrainJobs(self.api, log=log)

    def run(self) -> None:
        """Run until the stop is requested, in a world that has started. Raises the error that ended a watch."""
        try:
            with self.stop.call_on_stop(lambda: self.world.changes.put(None)):
                while not self.stop.is_requested:
                    self.run_once()
                    self.metrics.pass_done()
                    _wait(self.world)
        finally:
            self.world.stop()
            self._release()

    def run_once(self) -> None:
        """Renew the Lease, and carry out all decisions of this moment if this process holds it."""
        is_leader = self.lease.try_acquire_or_renew()
        self.metrics.is_leader.set(is_leader)
        jobs, malformed = self.world.jobs()
        self.metrics.jobs.set(len(jobs))
        self.metrics.pods_to_move.set(sum(bool(pod.drain_reason) for job in jobs for pod in job.pods))
        if not is_leader:
            return
        self._paused = {key: end for key, end in self._paused.items() if end > self.clock()}
        budgets = self.world.budgets()
        for decision in self._decide(jobs, budgets):
            if not self.lease.is_leader:
                return
            self._execute(decision)
        self._delete(orphaned_budgets(budgets, jobs))
        self._report_skipped(malformed)
        may_act = lambda: self.lease.is_leader and not self.stop.is_requested  # noqa: E731
        if self.world.has_ddpjobs:
            self.train_jobs.reconcile(self.world.unlabeled_pods(), self.world.train_jobs(), may_act=may_act)
        # Last, since the objects of many new jobs take longer than pods can wait that leave a node.
        self.reconciler.reconcile_all(self.world.ddpjobs(), self.world.runs(), may_act=may_act)

    def _report_skipped(self, malformed: Malformed) -> None:
        """Report each job that is left alone once, in the log and in its events."""
        reasons = {str(root["metadata"]["uid"]): reason for root, reason in malformed}
        self._skipped = {uid: reason for uid, reason in self._skipped.items() if reasons.get(uid) == reason}
        new = [(root, reason) for root, reason in malformed if root["metadata"]["uid"] not in self._skipped]
        for root, reason in new[:MOST_REPORTS]:
            metadata = root["metadata"]
            self._skipped[metadata["uid"]] = reason
            log("skipped", job=f"{metadata['namespace']}/{metadata['name']}", reason=reason)
            try:
                report_skipped(self.api, root, reason)
            except DdpError as error:
                log("refused", action="event", error=str(error))
                if isinstance(error, Forbidden):
                    self.check_rights()

    def _decide(self, jobs: list[RunningJob], budgets: list[Object]) -> Iterator[Decision]:
        now, clock = time.time(), self.clock()
        by_namespace: dict[str, list[Object]] = {}
        for budget in budgets:
            by_namespace.setdefault(str(budget["metadata"].get("namespace")), []).append(budget)
        before, self._may_leave = self._may_leave, {}
        for job in jobs:
            own_budgets = by_namespace.get(str(job.root["metadata"].get("namespace")), [])
            if self._paused.get((job.key, True), 0) <= clock and (
                change := decide_budget(job, own_budgets, now, self.timing)
            ):
                yield change
            move = decide_move(job, now, self.timing) if self._paused.get((job.key, False), 0) <= clock else None
            if isinstance(move, Evict) and _may_be_drained(move):
                since = self._may_leave[move.pod.uid] = before.get(move.pod.uid, clock)
                move = move if clock - since >= DRAIN_SECONDS else None
            if move:
                yield move
        states = self.world.cluster_queues(jobs)
        self.metrics.waiting.set(sum(len(state.waiting) for state in states))
        resizes = [resize for state in states for resize in decide_sizes(state, now, self.timing)]
        yield from (resize for resize in resizes if self._paused.get((resize.job.key, False), 0) <= clock)

    def _execute(self, decision: Decision) -> None:
        action = action_of(decision)
        facts = facts_of(decision)
        pause = 0.0 if isinstance(decision, SetBudget) else TICK_SECONDS  # until the watches show the change
        try:
            execute(self.api, decision)
        except Conflict:  # decided on an old copy of the object
            self.metrics.refusals.labels(action).inc()
        except DdpError as error:
            self.metrics.refusals.labels(action).inc()
            pause = PAUSE_SECONDS
            log("refused", action=action, **facts, error=str(error))
            if isinstance(error, Forbidden):
                with contextlib.suppress(Unreachable):
                    self.check_rights()
        else:
            self.metrics.decisions.labels(action).inc()
            log(action, **facts)
        self._paused[decision.job.key, isinstance(decision, SetBudget)] = self.clock() + pause

    def _delete(self, budgets: list[Object]) -> None:
        try:
            delete_budgets(self.api, budgets)
        except DdpError as error:
            log("refused", action="budget", error=str(error))

    def _release(self) -> None:
        """Delete the PodDisruptionBudgets, which would block drains without a controller, and release the Lease."""
        if not self.lease.is_leader:
            return
        self._delete([budget for budget in self.world.budgets() if is_managed(budget)])
        try:
            self.lease.release()
        except DdpError as error:
            log("refused", action="release", error=str(error))


def _may_be_drained(move: Evict) -> bool:
    """Return whether a drain may want to evict the pod, too.

    A drain evicts pods by name. If the controller evicts a pod first, its successor in a PyTorchJob has the same name.
    The drain then does not end before it has evicted the successor.
    """
    return move.reason == CORDONED and move.pod != move.job.store


def action_of(decision: Decision) -> str:
    """Return the word for a decision in logs and metrics."""
    match decision:
        case Resize():
            return decision.action
        case Evict():
            return "evict"
        case SetBudget():
            return "budget"


def facts_of(decision: Decision) -> dict[str, Any]:
    """Return the facts of a decision for its log line."""
    match decision:
        case Resize():
            return {
                "job": decision.job.key,
                "size": decision.size,
                "before": decision.job.size,
                "reason": decision.reason,
            }
        case Evict():
            return {"job": decision.job.key, "pod": decision.pod.name, "reason": decision.reason}
        case SetBudget():
            return {"job": decision.job.key, "minAvailable": decision.min_available}


def log(event: str, **facts: Any) -> None:
    """Print one line of JSON to stderr."""
    print(json.dumps({"time": round(time.time(), 3), "event": event, **facts}), file=sys.stderr, flush=True)


def retry_unreachable(
    act: Callable[[], Result], stop: Stop, *, clock: Callable[[], float] = time.monotonic
) -> Result | None:
    """Return the result of ``act``, which is repeated while the API server is unreachable; None after a stop.

    Raises:
        Unreachable: If the API server was unreachable for longer than a watch would wait.
    """
    began, pause = clock(), reflector.PAUSE_SECONDS
    while not stop.is_requested:
        try:
            return act()
        except Unreachable as error:
            if clock() - began > reflector.MAX_UNAVAILABLE_SECONDS:
                raise
            log("unreachable", error=str(error))
        stop.wait(pause)
        pause = min(2 * pause, reflector.LONGEST_PAUSE_SECONDS)
    return None


def _wait(world: World) -> None:
    """Wait for a change or a tick, and combine all changes. Raises the error that ended a watch."""
    try:
        news = world.changes.get(timeout=TICK_SECONDS)
        while True:
            if news is not None:
                raise news
            news = world.changes.get_nowait()
    except queue.Empty:
        return
