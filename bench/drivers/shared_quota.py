"""Part of ``bench controller``: a job of higher priority comes and goes, and an elastic job makes room for it.

:func:`quota_jobs` creates a ClusterQueue for three pods, without preemption, and an elastic job that fills it.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.drivers.cluster_runs import POLL_SECONDS, IndexedJobRun
from bench.drivers.controller_process import controller
from bench.drivers.jobs import ROOT
from bench.drivers.object_history import ObjectHistory, Version
from bench.drivers.step_recorder import StepRecorder, longest_pause, repeated_steps
from bench.harness import CannotMeasure
from ddp_trainer.common.constants import Env
from kubectl_ddp.backends.cluster.http.api import Api, collection
from kubectl_ddp.backends.cluster.http.api_errors import NotServed
from kubectl_ddp.kube.kueue_queue import owner_of
from kubectl_ddp.kube.objects import holds

if TYPE_CHECKING:
    from bench.measurements.controller import ControllerBench

Json = dict[str, Any]

KUEUE: Final = "kueue.x-k8s.io/v1beta2"
ROUNDS: Final = 30
LEAST, MOST = 1, 3
"""Range of the elastic job. The quota is for its maximum."""
CPU_MILLIS: Final = 900
"""CPU of each pod, in thousandths. With less, a new pod imports torch more slowly."""
WAIT_SECONDS: Final = 180.0
READY_SECONDS: Final = 10.0
"""Time of training before a change. In its first half, fork servers of new pods import torch."""
CALM_SECONDS: Final = 5.0
"""Time of the other job in its quota, and of training whose longest pause is the baseline."""
SLEEP: Final = "import time\ntime.sleep(86400)\n"


class ElasticRun(IndexedJobRun):
    """The digits as an elastic job in a queue of Kueue, at a pace that leaves processors to pods that start."""

    program = (
        *(str(ROOT / "tests/scripts/paced.py"), "--", "--epochs", "1000000"),
        *("--checkpoint-seconds", "1", "--log-json", "--log-steps", "1"),
    )
    queue = ""
    """LocalQueue, and the priority class of the other jobs."""

    def submit(self, least: int, most: int, *, apart: bool) -> None:  # noqa: ARG002 - the nodes may be on one machine
        """See :class:`bench.drivers.cluster_runs.Run`."""
        self.submit_in_queue(self.name, f"{least}:{most}", "--max-restarts", "1000", *self.program)

    def submit_in_queue(self, name: str, nnodes: str, *words: str) -> None:
        """Submit a job into the queue. Raises CannotMeasure."""
        self.ddp(
            *("submit", "--name", name, "--image", self.image, "--engine", self.engine, "--nnodes", nnodes),
            *("--nproc", "1", "--cpu", f"{CPU_MILLIS}m", "--memory", "1Gi", "--shm", "64Mi"),
            *("--queue", self.queue, "--queue-resize", "running", *words),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaJobs:
    """An elastic job that trains with its full size, and what it shares its quota with."""

    run: ElasticRun
    recorder: StepRecorder
    jobs: ObjectHistory
    workloads: ObjectHistory
    script: Path
    """Program of the other jobs, which sleep."""

    def submit_other(self, name: str) -> str:
        """Submit a job of higher priority, and return the uid of its root object. Raises CannotMeasure."""
        words = ("--queue-priority", self.run.queue, "--grace", "5s", "--env", f"{Env.FORK_SERVER}=0", str(self.script))
        self.run.submit_in_queue(name, "1:2", *words)
        return str(self.run.backend.job(name).job["metadata"]["uid"])

    def wait_until_admitted(self, uid: str, seconds: float) -> Version:
        """Return the version in which the Workload of a job was admitted. Raises CannotMeasure."""
        return self.workloads.wait_for(
            "The admission of the other job",
            lambda version: owner_of(version.item) == uid and holds(version.item, "Admitted"),
            seconds,
        )

    def wait_until_quota_free(self, uid: str, seconds: float) -> Version:
        """Return the version in which the Workload of a job released its quota. Raises CannotMeasure."""
        return self.workloads.wait_for(
            "The end of the other job",
            lambda version: owner_of(version.item) == uid and (version.is_deleted or holds(version.item, "Finished")),
            seconds,
        )

    def wait_until_full_size(self, after: float, seconds: float) -> Version:
        """Return the version in which Kueue granted the full size. Raises CannotMeasure."""
        uid = self.run.backend.job(self.run.name).job["metadata"]["uid"]
        return self.workloads.wait_for(
            "The full size of the elastic job",
            lambda version: (
                version.time > after
                and owner_of(version.item) == uid
                and holds(version.item, "Admitted")
                and version.item["spec"]["podSets"][0]["count"] == MOST
            ),
            seconds,
        )


@contextlib.contextmanager
def quota_jobs(bench: ControllerBench) -> Iterator[QuotaJobs]:
    """Yield an elastic job at its full size. A controller must run. Raises CannotMeasure."""
    space = bench.backend.namespace
    run = ElasticRun(bench.backend, bench.api, bench.image, "elastic")
    with (
        _queue(bench) as run.queue,
        tempfile.TemporaryDirectory(prefix="ddp-bench-") as folder,
        ObjectHistory(bench.api, collection("batch/v1", "jobs", space)) as jobs,
        ObjectHistory(bench.api, collection(KUEUE, "workloads", space)) as workloads,
        StepRecorder(run) as recorder,
    ):
        script = Path(folder) / "sleep.py"
        script.write_text(SLEEP)
        run.submit(LEAST, MOST, apart=False)
        recorder.wait_for_step(0.0, WAIT_SECONDS, world=MOST)
        yield QuotaJobs(run=run, recorder=recorder, jobs=jobs, workloads=workloads, script=script)


def _queue(bench: ControllerBench) -> contextlib.AbstractContextManager[str]:
    """Return a queue with quota for the elastic job's maximum."""
    return local_queue(bench.api, bench.backend.namespace, cpu=f"{MOST * CPU_MILLIS}m", memory="1Ti")


@contextlib.contextmanager
def local_queue(api: Api, name: str, *, cpu: str, memory: str) -> Iterator[str]:
    """Yield the name of a LocalQueue, of its quota, and of a priority class: that of the namespace.

    Args:
        api: API server.
        name: Name of the namespace.
        cpu: Quota of CPU.
        memory: Quota of memory.

    Raises:
        CannotMeasure: If the cluster has no Kueue.
    """
    quota = [{"name": "cpu", "nominalQuota": cpu}, {"name": "memory", "nominalQuota": memory}]
    group = {"coveredResources": ["cpu", "memory"], "flavors": [{"name": name, "resources": quota}]}
    selector = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    specs: dict[tuple[str, str], Json] = {
        ("ResourceFlavor", "resourceflavors"): {"spec": {}},
        ("ClusterQueue", "clusterqueues"): {"spec": {"namespaceSelector": selector, "resourceGroups": [group]}},
        ("WorkloadPriorityClass", "workloadpriorityclasses"): {"value": 2000},
    }
    with contextlib.ExitStack() as undo:
        for (kind, plural), item in specs.items():
            path = collection(KUEUE, plural, None)
            body = {"apiVersion": KUEUE, "kind": kind, "metadata": {"name": name}, **item}
            try:
                uid = api.create(path, body)["metadata"]["uid"]
            except NotServed as error:
                raise CannotMeasure("The cluster has no Kueue.") from error
            undo.callback(api.delete, f"{path}/{name}", uid=uid)
        local = {"apiVersion": KUEUE, "kind": "LocalQueue", "metadata": {"name": name}, "spec": {"clusterQueue": name}}
        api.create(collection(KUEUE, "localqueues", name), local)
        yield name


def shared_quota(bench: ControllerBench) -> None:
    """Time both changes of the elastic job while another job comes and goes."""
    with controller(bench.backend.namespace), quota_jobs(bench) as jobs:
        for number in range(3 if bench.options.quick else ROUNDS):
            _measure_round(bench, jobs, f"other-{number}")
        bench.add_samples("quota", jobs.recorder.suspend_and_read_summary(WAIT_SECONDS))
        bench.add("quota_repeated_steps", float(repeated_steps(jobs.recorder.steps())))


def _measure_round(bench: ControllerBench, jobs: QuotaJobs, name: str) -> None:
    recorder = jobs.recorder
    recorder.wait_for_step(time.time(), WAIT_SECONDS, world=MOST)
    time.sleep(READY_SECONDS)
    begun = time.time()
    uid = jobs.submit_other(name)
    admitted = jobs.wait_until_admitted(uid, WAIT_SECONDS).time
    time.sleep(CALM_SECONDS)
    left = time.time()
    jobs.run.backend.delete(name)
    freed = jobs.wait_until_quota_free(uid, WAIT_SECONDS).time
    granted = jobs.wait_until_full_size(freed, WAIT_SECONDS).time
    sized = _wait_until_all_run(jobs.run)
    stepped = recorder.wait_for_step(freed, WAIT_SECONDS, world=MOST).time
    time.sleep(CALM_SECONDS)
    steps = recorder.steps_until(time.time(), WAIT_SECONDS)
    values = {
        "shrink_pause": longest_pause(steps, begun, left).seconds,
        "grow_pause": longest_pause(steps, left, stepped + CALM_SECONDS).seconds,
        "admitted": admitted - begun,
        "granted": granted - freed,
        "full_size": sized - freed,
        "full_world": stepped - freed,
    }
    for what, seconds in values.items():
        bench.add(f"quota_{what}_seconds", seconds)
    bench.add("calm_pause_seconds", longest_pause(steps, begun - CALM_SECONDS, begun).seconds)
    bench.options.progress(f"{name}: {', '.join(f'{what} {seconds:.2f} s' for what, seconds in values.items())}")


def _wait_until_all_run(run: ElasticRun) -> float:
    """Return the Unix time at which the containers of all pods run. Raises CannotMeasure."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        states = [
            container.get("state") or {}
            for pod in run.pods()
            for container in pod["status"].get("containerStatuses") or ()
        ]
        if sum("running" in state for state in states) == MOST:
            return time.time()
        time.sleep(POLL_SECONDS)
    raise CannotMeasure(f"{run.name} did not have {MOST} running pods within {WAIT_SECONDS:g} s.")
