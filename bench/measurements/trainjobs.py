"""Faults and resizes of a TrainJob that no command of ours made, on a real cluster, beside Kubeflow's own runtime.

Ours is a TrainJob of the runtime ``ddp-torch-elastic`` with the reference trainer, under the controller. It is resized
through the Job in its JobSet, and in the parts with ``gate`` through the JobSet, whose controller then has the feature
gate ``ElasticJobSet``. Stock is a plain DDP script in a TrainJob of Kubeflow's runtime ``torch-distributed``. Its size
cannot change, also when it is suspended, so it is deleted and created again. Images are on the machines before.

A time goes from the request or the fault to the first step of a group that began after it, by the container runtime's
timestamps of the lines that ranks print.

It needs a KUBECONFIG of Kubernetes 1.36 (image volumes), kubectl, Kubeflow Trainer, JobSet in the namespace
``jobset-system``, rights over both, and the variables ``DDP_TEST_IMAGE``, ``DDP_TEST_RUNTIME_IMAGE`` and
``DDP_TEST_CONTROLLER_IMAGE`` with images that the nodes can start.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import Final

from bench.drivers import cluster_runs, kubeflow, node_drain
from bench.drivers.agent_recovery import RecoveryStats
from bench.drivers.cluster_runs import Run
from bench.drivers.controller_process import controller
from bench.drivers.kubeflow import BaselineTrainJobRun, PlatformTrainJobRun
from bench.drivers.node_access import NodeAccess, node_access
from bench.drivers.step_recorder import StepRecorder, longest_pause
from bench.harness import CannotMeasure, Options, Report
from kubectl_ddp.backends.access import Access
from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.values.pod import RuntimeMount

SUMMARY = "seconds from a fault or a resize to the next step of a plain TrainJob, beside Kubeflow's runtime"

GIVEN_UP: Final = 120.0
SETTLED_SECONDS: Final = 8.0
PARTS: Final = ("ours", "ours-gate", "stock")
BARS: Final[Mapping[str, float]] = {"worker_killed": 0.5, "scaled_up_by_one": 4.0}
"""Fault → upper limit of its median, in seconds. Two pods that start at once share two processors for their imports, so
``scaled_up``, by two, has no bar.
"""
FAULTS: Final[Mapping[str, Callable[[NodeAccess, Run], float]]] = {
    "worker_killed": lambda access, run: access.kill(run.pods()[1], run.worker(run.pods()[1])),
    "pod_deleted": lambda _, run: run.delete_pod(run.pods()[1]),
}
SIZES: Final = (("scaled_up_by_one", 1, 2), ("scaled_down", 2, 1), ("scaled_up", 1, 3), ("scaled_down", 3, 2))
"""Resizes: name, nodes before, nodes after."""
LAST: Final = "pod_deleted"
"""Fault of the last round alone: Kubernetes waits twice as long with each pod of a Job that failed."""


def measure(options: Options) -> Report:
    """Run the selected parts, each in its own namespace."""
    wanted = options.parts(PARTS)
    images = {"trainer": cluster_runs.image()}
    for word in ("runtime", "controller"):
        variable = f"DDP_TEST_{word.upper()}_IMAGE"
        if variable not in os.environ:
            raise CannotMeasure(f"{variable} names no image that the cluster can start.")
        images[word] = os.environ[variable]
    api = cluster_runs.connected_api()
    report = Report()
    with contextlib.ExitStack() as stack:
        access = stack.enter_context(node_access(api, images["trainer"]))
        stack.enter_context(kubeflow.platform_runtimes(api, images, RuntimeMount.IMAGE))
        stack.enter_context(kubeflow.baseline_runtime(api, images["trainer"]))
        for part in wanted:
            with contextlib.ExitStack() as parts:
                if part == "ours-gate":
                    parts.enter_context(kubeflow.elastic_job_sets(api))
                space = parts.enter_context(cluster_runs.namespace(api))
                arguments = ClusterBackend(Access(namespace=space)), api, images["trainer"], "digits"
                if part == "stock":
                    _measure_baseline_job(BaselineTrainJobRun(*arguments), report, options)
                else:
                    _measure_platform_job(
                        PlatformTrainJobRun(*arguments), access, report, options, "gate_" if part == "ours-gate" else ""
                    )
    return report


def _measure_platform_job(
    run: PlatformTrainJobRun, access: NodeAccess, report: Report, options: Options, prefix: str
) -> None:
    stats = RecoveryStats()
    with StepRecorder(run) as recorder, controller(run.backend.namespace, "--ddpjobs"):
        run.submit(1, 1, apart=False)
        for round_number in reversed(range(1 if options.quick else 3)):
            _scale(run, stats, options)
            if not prefix:
                _drain(run, recorder, stats)
            for name in () if prefix else [name for name in FAULTS if name != LAST or not round_number]:
                _train(run, 2)
                begun = FAULTS[name](access, run)
                stats.since(name, begun, run.first(begun, GIVEN_UP))
                stats.since(f"{name}_until_whole", begun, run.first(begun, GIVEN_UP, world=2))
            options.progress(str(stats))
            run.scale(1)
        summary = recorder.suspend_and_read_summary(GIVEN_UP)
    for name in stats.tries:
        seconds = stats.seconds(name)
        report.at_most(f"not recovered, {prefix}{name}".replace("_", " "), len(stats.tries[name]) - len(seconds), 0)
        times = report.figure(f"{prefix}{name}_seconds", seconds) if seconds else None
        if times and name in BARS:
            report.at_most(f"median seconds, {prefix}{name}".replace("_", " "), times.median, BARS[name])
    report.at_most(f"samples lost {prefix}".strip(" _"), summary["samples_lost"], 0)
    report.at_most(f"samples repeated {prefix}".strip(" _"), summary["samples_repeated"], 0)


def _drain(run: PlatformTrainJobRun, recorder: StepRecorder, stats: RecoveryStats) -> None:
    """Drain a node. The controller starts another pod first, so only the longest pause counts."""
    _train(run, 2)
    begun = time.time()
    node_drain.drain(run.name, run.pods()[1]["spec"]["nodeName"])
    _train(run, 2)
    ended = time.time()
    steps = recorder.steps_until(ended, GIVEN_UP)
    stats.add("longest_pause_of_drain", longest_pause(steps, begun, ended).seconds)


def _measure_baseline_job(run: BaselineTrainJobRun, report: Report, options: Options) -> None:
    stats = RecoveryStats()
    run.submit(1, 1, apart=False)
    for _ in range(1 if options.quick else 3):
        _scale(run, stats, options)
        run.scale(1)
    for name in stats.tries:
        if stats.seconds(name):
            report.baseline(f"stock_{name}_seconds", stats.seconds(name))


def _scale(run: Run, stats: RecoveryStats, options: Options) -> None:
    """Resize a job of one node to two nodes and back, then to three, and then to two."""
    for name, before, nodes in SIZES:
        _train(run, before)
        begun = time.time()
        run.scale(nodes)
        stats.since(name, begun, run.first(begun, GIVEN_UP, world=nodes))
    options.progress(f"{type(run).__name__}: {stats}")


def _train(run: Run, world: int) -> None:
    run.train(world, GIVEN_UP, lasting=SETTLED_SECONDS)
