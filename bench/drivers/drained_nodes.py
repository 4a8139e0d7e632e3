"""Part of ``bench recovery-cluster``: nodes are drained in turns while the controller moves their pods."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from bench.drivers.cluster_runs import Run, TrainerRun
from bench.harness import CannotMeasure
from bench.peers.torchrun_driver import free_port
from ddp_trainer.common.constants import GroupState, Label
from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.errors import DdpError
from kubectl_ddp.status.metrics_parser import parse

if TYPE_CHECKING:
    from bench.measurements.recovery_cluster import Bench

DRAINS: Final = 30
WORLD: Final = 2
WAIT_SECONDS: Final = 150.0
"""Time for a spare to be ready, and for one drain."""
PAUSE_BAR_SECONDS: Final = 0.5
SETTLED_SECONDS: Final = 3.0


def drained(bench: Bench, kind: type[Run]) -> None:
    """Drain the node of a member of a group of two beside a spare, again and again."""
    with bench.job(kind, "drained", WORLD, WORLD, counts_start=False, spares=1) as run, _controller(run):
        assert isinstance(run, TrainerRun)
        lost = 0.0
        for _ in range(4 if bench.options.quick else DRAINS):
            run.wait_for_spares(WAIT_SECONDS)
            run.train(WORLD, WAIT_SECONDS, lasting=SETTLED_SECONDS)
            node = run.pods_in(GroupState.RUNNING)[0]["spec"]["nodeName"]
            begun = time.time()
            _drain(run, node)
            end = time.time() + SETTLED_SECONDS
            time.sleep(SETTLED_SECONDS)
            steps = run.steps(begun)
            bench.ours.add("drain_pause", run.longest_pause(begun, end))
            bench.ours.add("drain_missing_ranks", float(WORLD - min((seen.world for seen in steps), default=0)))
            lost = max(lost, _lost_steps(run))
            bench.options.progress(f"drain of {node}: longest pause {bench.ours.tries['drain_pause'][-1]} s")
        bench.ours.add("drain_lost_steps", lost)


@contextmanager
def _controller(run: Run) -> Iterator[None]:
    """A controller for the namespace of the job."""
    space = run.backend.namespace
    flags = ("--namespace", space, "--only-namespace", space, "--port", str(free_port()))
    with subprocess.Popen([sys.executable, "-m", "ddp_controller", *flags], stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            process.terminate()


def _drain(run: Run, node: str) -> None:
    """Evict all pods of the job from a node by ``kubectl drain``, and uncordon it. Raises CannotMeasure."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise CannotMeasure("kubectl is not there, which drains nodes.")
    flags = ("--ignore-daemonsets", "--delete-emptydir-data", f"--pod-selector={Label.JOB}={run.name}")
    try:
        done = subprocess.run(
            [kubectl, "drain", node, *flags, f"--timeout={WAIT_SECONDS:g}s"],
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        subprocess.run([kubectl, "uncordon", node], capture_output=True, check=True)
    if done.returncode:
        raise CannotMeasure(f"{node} was not drained: {done.stderr.strip()[-300:]}")


def _lost_steps(run: Run) -> float:
    found = [0.0]
    for pod in run.pods():
        with suppress(DdpError):
            found.append(parse(run.backend.metrics(pod)).value(Metric.LOST_STEPS) or 0.0)
    return max(found)
