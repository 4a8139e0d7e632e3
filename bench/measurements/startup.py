"""Seconds from the command ``submit`` to the first step of digits on a cluster that has the image, and their phases.

The time begins with the process of ``submit`` and ends with the first step that a pod reports. The waterfall of
``status`` must account for it. A busy machine changes the processor time of the command and of the ranks less than the
wall time. It needs a KUBECONFIG, and the variable ``DDP_TEST_IMAGE`` with a trainer image that the nodes have.
"""

from __future__ import annotations

import re
import resource
import statistics
import time
from dataclasses import dataclass
from typing import Final

from bench.drivers.cluster_runs import POLL_SECONDS, TrainerRun, connected_api, image, namespace
from bench.harness import CannotMeasure, Options, Report
from ddp_trainer.common.time_classes import StartupPhase
from kubectl_ddp.backends.access import Access
from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api import Api
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.status.startup import Startup

SUMMARY = "seconds from submit to the first step of digits on a cluster, by phases"

NODES: Final = 2
PROCESSES: Final = 2
BAR_SECONDS: Final = 6.0
ERROR_BAR: Final = 0.05
PATIENCE_SECONDS: Final = 180.0
RANK_CPU: Final = re.compile(r"^ddp_rank_cpu_seconds_total\{.*\} (\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FirstStep:
    """Start of one job."""

    seconds: float
    """Seconds from the start of the command to the first step."""
    startup: Startup
    submit_cpu_seconds: float
    worker_cpu_seconds: float
    """Processor time of all ranks until they were looked at, soon after the first step. Fork servers do not count."""


class DigitsRun(TrainerRun):
    """Digits on two nodes of two processes, as in the examples."""

    def submit(self, least: int, most: int, *, apart: bool) -> None:  # noqa: ARG002 - the nodes may be on one machine
        """See :class:`bench.drivers.cluster_runs.Run`."""
        self.ddp(
            *("submit", "--name", self.name, "--image", self.image, "--nnodes", f"{least}:{most}"),
            *("--nproc", str(PROCESSES), "--cpu", "1", "--memory", "2Gi", "--module", "ddp_trainer"),
            *("--", "train", "--task", "digits", "--epochs", "1000000"),
        )


def measure(options: Options) -> Report:
    """Start jobs one after the other, and read the phases of each."""
    api = connected_api()
    starts = []
    with namespace(api) as space:
        for number in range(2 if options.quick else 7):
            starts.append(start_digits(api, space, f"digits-{number}"))
            phases = ", ".join(f"{phase} {seconds:.2f}" for phase, seconds in starts[-1].startup.seconds.items())
            options.progress(f"{starts[-1].seconds:.2f} s: {phases}")
    return report_of(starts)


def start_digits(api: Api, space: str, name: str) -> FirstStep:
    """Submit a job, wait for its first step, and delete it. Raises CannotMeasure."""
    run = DigitsRun(ClusterBackend(Access(namespace=space)), api, image(), name)
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.time()
    run.submit(NODES, NODES, apart=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        startup = first_step(run)
        exposed = "\n".join(run.backend.metrics(pod) for pod in run.pods())
    finally:
        run.delete()
    return FirstStep(
        seconds=startup.since - begun,
        startup=startup,
        submit_cpu_seconds=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        worker_cpu_seconds=sum(map(float, RANK_CPU.findall(exposed))),
    )


def first_step(run: TrainerRun) -> Startup:
    """Return the start of a job once its first step has ended. Raises CannotMeasure."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        startup = observe(run.backend, run.backend.job(run.name)).startup
        if startup is not None and startup.is_over:
            return startup
        time.sleep(POLL_SECONDS)
    raise CannotMeasure(f"{run.name} took no step within {PATIENCE_SECONDS:g} s.")


def report_of(starts: list[FirstStep]) -> Report:
    """Return the figures of all starts."""
    report = Report()
    seconds = report.figure("first_step_seconds", [start.seconds for start in starts])
    for phase in StartupPhase:
        report.figure(f"{phase}_seconds", [start.startup.seconds.get(phase, 0.0) for start in starts])
    report.figure("submit_cpu_seconds", [start.submit_cpu_seconds for start in starts])
    report.figure("worker_cpu_seconds", [start.worker_cpu_seconds for start in starts])
    error = statistics.median(abs(1.0 - start.startup.total / start.seconds) for start in starts)
    report.figure("waterfall_error_ratio", error)
    report.at_most("median seconds from submit to the first step, image present", seconds.median, BAR_SECONDS)
    report.at_most("share of that time that the phases do not account for", error, ERROR_BAR)
    return report
