"""Part of ``bench controller``: nodes are drained in turns while the controller moves the pods of a job that trains."""

from __future__ import annotations

import shutil
import subprocess
import time
from typing import TYPE_CHECKING, Any, Final

from bench.drivers.cluster_runs import TrainerRun
from bench.drivers.controller_process import controller
from bench.drivers.step_recorder import StepRecorder, longest_pause, repeated_steps
from bench.harness import CannotMeasure
from ddp_trainer.common.constants import Annotation, GroupState, Label
from kubectl_ddp.kube import job_kinds

if TYPE_CHECKING:
    from bench.measurements.controller import ControllerBench

Json = dict[str, Any]

WORLD: Final = 2
LEAST: Final = 1
"""The job may shrink, so a drain that takes a member without a replacement shows as a smaller world."""
JOBS: Final = 5
"""Jobs of each kind."""
DRAINS: Final = 3
"""Drains of each job. A store is a Kubernetes Job, which waits twice as long with each pod that it replaces."""
WAIT_SECONDS: Final = 300.0
CALM_SECONDS: Final = 5.0
"""Time of training before a drain, whose longest pause is the baseline."""
SPARES: Final = {"spare": 1, "temporary_pod": 0}
"""Replacement of an evicted pod → number of spares of the job."""


class SmallRun(TrainerRun):
    """A PyTorchJob of which four pods fit on one machine of two processors. Less CPU would make each change slow."""

    cpu = "400m"


def measure_node_drain(bench: ControllerBench) -> None:
    """Drain the node of a member of a group of two, again and again, with a spare and without."""
    jobs, drains = (1, 2) if bench.options.quick else (JOBS, DRAINS)
    for number in range(jobs):
        for name, spares in SPARES.items():
            words = f"{name.replace('_', '-')}-{number}"
            run = SmallRun(bench.backend, bench.api, bench.image, words, spares=spares)
            with StepRecorder(run) as recorder, controller(run.backend.namespace):
                run.submit(LEAST, WORLD, apart=False)
                recorder.wait_for_step(0.0, WAIT_SECONDS, world=WORLD)
                for _ in range(drains):
                    _measure_drain(bench, run, recorder, name)
                bench.add_samples(f"drain_{name}", recorder.suspend_and_read_summary(WAIT_SECONDS))
                bench.add(f"drain_{name}_repeated_steps", float(repeated_steps(recorder.steps())))
            run.delete()


def _measure_drain(bench: ControllerBench, run: TrainerRun, recorder: StepRecorder, name: str) -> None:
    _wait_until_stable(run)
    time.sleep(CALM_SECONDS)
    node = run.pods_in(GroupState.RUNNING)[0]["spec"]["nodeName"]
    begun = time.time()
    drain(run.name, node)
    drained = time.time()
    _wait_until_stable(run)
    ended = time.time()
    steps = recorder.steps_until(ended, WAIT_SECONDS)
    during = [seen for seen in steps if begun <= seen.time <= ended]
    pause = longest_pause(steps, begun, ended)
    bench.add(f"drain_{name}_pause_seconds", pause.seconds)
    bench.add("calm_pause_seconds", longest_pause(steps, begun - CALM_SECONDS, begun).seconds)
    bench.add(f"drain_{name}_missing_ranks_count", float(WORLD - min((seen.world for seen in during), default=0)))
    bench.add(f"drain_{name}_wait_seconds", drained - begun)
    bench.options.progress(
        f"drain of {node}, {name}: {drained - begun:.0f} s, longest pause {pause.seconds:.2f} s"
        f" after {pause.begin - begun:.1f} s"
    )


def _wait_until_stable(run: TrainerRun) -> None:
    """Wait until the group has its size, each pod has its place, and no pod moves. Raises CannotMeasure."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        job = run.backend.job(run.name).job
        is_moving = bool(job_kinds.json_annotation(job, Annotation.MOVE))
        if not is_moving and len(run.pods()) == WORLD + run.spares:
            members, spares = len(run.pods_in(GroupState.RUNNING)), len(run.pods_in(GroupState.SPARE))
            if (members, spares) == (WORLD, run.spares):
                return
        time.sleep(1.0)
    raise CannotMeasure(f"{run.name} did not get {WORLD} members and {run.spares} spares within {WAIT_SECONDS:g} s.")


def drain(job: str, node: str) -> None:
    """Evict all pods of the job from a node by ``kubectl drain``, and uncordon it. Raises CannotMeasure."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise CannotMeasure("kubectl is missing, which drains nodes: make tools.")
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={Label.JOB}={job}")
    command = [kubectl, "drain", node, *flags, f"--timeout={WAIT_SECONDS:g}s"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    finally:
        subprocess.run([kubectl, "uncordon", node], capture_output=True, check=True)
    if done.returncode:
        raise CannotMeasure(f"{node} was not drained: {done.stderr.strip()[-300:]}")
