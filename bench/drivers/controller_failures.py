"""Part of ``bench controller``: two controllers are killed, paused and cut off while jobs share a quota.

The history of the objects shows what the controllers did: :func:`size_changes`, :func:`above_quota` and
:func:`repeated_size_changes` read it.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.drivers.controller_process import ControllerProcess, TcpProxy, kubeconfig_through, server_address
from bench.drivers.object_history import Version
from bench.drivers.shared_quota import LEAST, MOST, WAIT_SECONDS, QuotaJobs, quota_jobs
from bench.drivers.step_recorder import longest_pause, repeated_steps
from bench.harness import CannotMeasure, Options
from ddp_controller.lease import NAME
from ddp_trainer.common.constants import Annotation
from kubectl_ddp.backends.cluster.http.api import collection
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.kueue_queue import owner_of
from kubectl_ddp.kube.objects import holds

if TYPE_CHECKING:
    from bench.measurements.controller import ControllerBench

Json = dict[str, Any]

SECONDS: Final = 1200.0
QUICK_SECONDS: Final = 60.0
BETWEEN_SECONDS: Final = (2.0, 12.0)
"""Time between two failures."""
DOWN_SECONDS: Final = (1.0, 30.0)
"""Duration of a failure: shorter and longer than the Lease, which lasts 15 s."""
STAY_SECONDS: Final = (1.0, 8.0)
"""Time that the other job has its quota, and that it is away."""
STALE_SECONDS: Final = 1.0
"""Age of the state on which a controller may decide: its watches are not immediate."""


# ------------------------------------------------------------------------------------------------------------- history


@dataclass(frozen=True, slots=True)
class SizeChange:
    """One change of a job by the controller."""

    version: Version
    before: int
    size: int
    reason: str


def size_changes(versions: Sequence[Version], name: str) -> list[SizeChange]:
    """Return all changes of a Job that have a new annotation ``ddp.dev/size``, also those to the same size."""
    versions_of_job = [
        version for version in versions if version.item["metadata"]["name"] == name and not version.is_deleted
    ]
    found = []
    for sooner, later in itertools.pairwise(versions_of_job):
        sizes = [job_kinds.json_annotation(version.item, Annotation.SIZE) for version in (sooner, later)]
        if sizes[0] != sizes[1]:
            before, size = (int(version.item["spec"]["parallelism"]) for version in (sooner, later))
            found.append(SizeChange(later, before, size, str(sizes[1].get("reason"))))
    return found


def above_quota(changes: Sequence[SizeChange], workloads: Sequence[Version], uid: str, quota: int) -> list[SizeChange]:
    """Return the changes to a larger size than other jobs had left free.

    Args:
        changes: Changes of the size of one job.
        workloads: History of all Workloads, whose pods have one size.
        uid: Uid of the job.
        quota: Number of pods for which there is quota.
    """

    def reserved_pods(change: SizeChange) -> int:
        newest = {
            version.item["metadata"]["uid"]: version for version in workloads if version.number <= change.version.number
        }
        return sum(
            int(version.item["spec"]["podSets"][0]["count"])
            for version in newest.values()
            if _has_quota(version)
            and owner_of(version.item) != uid
            and _reserved_for(version, workloads, change) > STALE_SECONDS
        )

    return [change for change in changes if change.size > change.before and change.size + reserved_pods(change) > quota]


def _has_quota(version: Version) -> bool:
    over = version.is_deleted or "deletionTimestamp" in version.item["metadata"] or holds(version.item, "Finished")
    return holds(version.item, "QuotaReserved") and not over


def _reserved_for(version: Version, workloads: Sequence[Version], change: SizeChange) -> float:
    """Return for how many seconds a Workload had its quota before a change."""
    uid = version.item["metadata"]["uid"]
    return change.version.time - min(
        version.time for version in workloads if version.item["metadata"]["uid"] == uid and _has_quota(version)
    )


def repeated_size_changes(changes: Sequence[SizeChange], workloads: Sequence[Version], uid: str) -> list[SizeChange]:
    """Return the changes without a new reason.

    A reason is new once another job has come or gone since the last change in the same direction.
    """
    reasons = _start_and_end_versions([version for version in workloads if owner_of(version.item) != uid])
    found = []
    for sooner, later in itertools.pairwise(changes):
        is_same = (later.size > later.before) == (sooner.size > sooner.before)
        is_new = any(sooner.version.number < number < later.version.number for number in reasons)
        if later.size == later.before or (is_same and not is_new):
            found.append(later)
    return found


def _start_and_end_versions(workloads: Sequence[Version]) -> list[int]:
    """Return the resource versions at which a Workload came, and at which it began to end."""
    found: dict[str, tuple[bool, int]] = {}
    numbers = []
    for version in workloads:
        metadata = version.item["metadata"]
        is_over = version.is_deleted or "deletionTimestamp" in metadata or holds(version.item, "Finished")
        if metadata["uid"] not in found or found[metadata["uid"]][0] != is_over:
            numbers.append(version.number)
        found[metadata["uid"]] = (is_over, version.number)
    return numbers


# ------------------------------------------------------------------------------------------------------------ failures


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of the controllers, with its connection to the API server."""

    process: ControllerProcess
    proxy: TcpProxy

    def kill(self, down: Callable[[], object]) -> None:
        """Kill the process, and start another one."""
        self.process.stop(signal.SIGKILL)
        down()
        self.process.start()

    def pause(self, down: Callable[[], object]) -> None:
        """Pause the process, and let it continue."""
        self.process.send(signal.SIGSTOP)
        down()
        self.process.send(signal.SIGCONT)

    def cut(self, down: Callable[[], object]) -> None:
        """Cut the process off from the API server, and let both meet again."""
        self.proxy.cut()
        down()
        self.proxy.join()


FAILURES: Final = (Candidate.kill, Candidate.pause, Candidate.cut)


@contextlib.contextmanager
def _candidates(namespace: str) -> Iterator[list[Candidate]]:
    """Yield two running controllers. Raises CannotMeasure."""
    found: list[Candidate] = []
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as folder:
        try:
            for number in range(2):
                proxy = TcpProxy(*server_address())
                process = ControllerProcess(namespace, kubeconfig=kubeconfig_through(proxy, Path(folder) / str(number)))
                found.append(Candidate(process, proxy))
                process.start()
                process.wait_until_ready()
            yield found
        finally:
            for candidate in found:
                candidate.process.stop()
                candidate.proxy.close()


@contextlib.contextmanager
def _failing(candidates: Sequence[Candidate], options: Options) -> Iterator[list[str]]:
    """Let one controller after the other fail at random, in a thread; yields the names of the failures."""
    chance, ended, done = random.Random(options.seed), threading.Event(), []

    def fail() -> None:
        while not ended.wait(chance.uniform(*BETWEEN_SECONDS)):
            number, failure, seconds = chance.randrange(2), chance.choice(FAILURES), chance.uniform(*DOWN_SECONDS)
            options.progress(f"controller {number}: {failure.__name__} for {seconds:.1f} s")
            failure(candidates[number], partial(ended.wait, seconds))
            done.append(failure.__name__)
            for candidate in candidates:  # as a Deployment does
                if candidate.process.exit_code is not None:
                    options.progress(
                        f"a controller ended with {candidate.process.exit_code}: {candidate.process.decisions[-1:]}"
                    )
                    candidate.process.start()

    thread = threading.Thread(target=fail, daemon=True)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join()


def controller_killed(bench: ControllerBench) -> None:
    """Check all changes of the controllers, which fail while other jobs come and go."""
    bench.options.progress(f"seed of the failures: {bench.options.seed}")
    chance = random.Random(bench.options.seed + 1)
    with _candidates(bench.backend.namespace) as candidates, quota_jobs(bench) as jobs:
        begun = time.time()
        end = begun + (QUICK_SECONDS if bench.options.quick else SECONDS)
        with _failing(candidates, bench.options) as failures:
            for number in itertools.count():
                if time.time() >= end:
                    break
                bench.add(
                    "failures_stuck_rounds_count", float(not _is_round_done(bench, jobs, f"other-{number}", chance))
                )
        bench.add("failures_count", float(len(failures)))
        jobs.recorder.wait_for_step(time.time(), WAIT_SECONDS, world=MOST)
        steps = jobs.recorder.steps_until(time.time(), WAIT_SECONDS)
        bench.add("failures_without_step_seconds", longest_pause(steps, begun, time.time()).seconds)
        _check_history(bench, jobs)
        bench.add_samples("failures", jobs.recorder.suspend_and_read_summary(WAIT_SECONDS))
        bench.add("failures_repeated_steps", float(repeated_steps(jobs.recorder.steps())))


def _is_round_done(bench: ControllerBench, jobs: QuotaJobs, name: str, chance: random.Random) -> bool:
    """Submit and delete another job. Returns False if it was not admitted, or the elastic job did not grow again."""
    begun = time.time()
    uid = jobs.submit_other(name)
    try:
        admitted = jobs.wait_until_admitted(uid, WAIT_SECONDS).time
        time.sleep(chance.uniform(*STAY_SECONDS))
    except CannotMeasure as error:
        bench.options.progress(f"{name}: {error}")
        return False
    finally:
        jobs.run.backend.delete(name)
        freed = jobs.wait_until_quota_free(uid, WAIT_SECONDS).time
    try:
        granted = jobs.wait_until_full_size(freed, WAIT_SECONDS).time
    except CannotMeasure as error:
        bench.options.progress(f"{name}: {error}")
        return False
    bench.options.progress(f"{name}: admitted {admitted - begun:.1f} s, granted {granted - freed:.1f} s")
    time.sleep(chance.uniform(*STAY_SECONDS))
    return True


def _check_history(bench: ControllerBench, jobs: QuotaJobs) -> None:
    versions, workloads = jobs.jobs.versions(), jobs.workloads.versions()
    items = [version.item for version in versions if version.item["metadata"]["name"] == jobs.run.name]
    uid = str(items[0]["metadata"]["uid"])
    changes = size_changes(versions, jobs.run.name)
    wrong = {
        "failures_below_minimum_count": [change for change in changes if change.size < LEAST],
        "failures_above_quota_count": above_quota(changes, workloads, uid, MOST),
        "failures_resized_twice_count": repeated_size_changes(changes, workloads, uid),
    }
    for figure, found in wrong.items():
        bench.add(figure, float(len(found)))
        for change in found:
            bench.options.progress(
                f"{figure}: {change.before} to {change.size} at {change.version.time:.1f}: {change.reason}"
            )
    bench.add("failures_resizes_count", float(len(changes)))
    started = next((index for index, item in enumerate(items) if not item["spec"]["suspend"]), len(items))
    bench.add("failures_suspended_count", float(sum(item["spec"]["suspend"] for item in items[started:])))
    lease = bench.api.get(f"{collection('coordination.k8s.io/v1', 'leases', bench.backend.namespace)}/{NAME}")
    bench.add("failures_takeovers_count", float(lease["spec"].get("leaseTransitions") or 0))
