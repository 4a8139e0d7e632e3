"""Training under the controller on a real cluster: nodes are drained, jobs share a quota, and the controller is killed.

The job is the reference trainer. Each step is read from the log of its pod while the pod runs, with the container
runtime's timestamp. A pause is the longest time between two steps from the beginning of a change until the job has its
size again. Samples that were lost or repeated are those that the trainer counted in its final summary.

It needs a KUBECONFIG, kubectl, the variable ``DDP_TEST_IMAGE`` with a trainer image that the nodes can start, the
training operator, Kueue, and rights over namespaces and nodes. It cordons nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bench.drivers import cluster_runs, controller_failures, node_drain, shared_quota
from bench.harness import Options, Report
from kubectl_ddp.backends.access import Access
from kubectl_ddp.backends.cluster import ClusterBackend
from kubectl_ddp.backends.cluster.http.api import Api

SUMMARY = "pauses of training while nodes are drained and jobs share a quota, and the controller under faults"


@dataclass(slots=True)
class ControllerBench:
    """Settings and results that all parts share."""

    api: Api
    backend: ClusterBackend
    image: str
    options: Options
    values: dict[str, list[float]] = field(default_factory=dict)
    """Values of each figure, in the order of the rounds."""

    def add(self, figure: str, value: float) -> None:
        """Record one value of a figure."""
        self.values.setdefault(figure, []).append(value)

    def add_samples(self, prefix: str, summary: Mapping[str, Any]) -> None:
        """Record what the trainer lost and repeated, by the final summary of its run."""
        for figure, key in COUNTED.items():
            self.add(f"{prefix}_{figure}", float(summary[key]))


COUNTED: Final = {"lost_samples": "samples_lost", "repeated_samples": "samples_repeated", "lost_steps": "lost_steps"}
"""Ending of a figure → key of the trainer's summary."""
PARTS: Final[Mapping[str, Callable[[ControllerBench], None]]] = {
    "drained-nodes": node_drain.measure_node_drain,
    "shared-quota": shared_quota.shared_quota,
    "controller-killed": controller_failures.controller_killed,
}

BARS: Final[Mapping[str, float]] = {
    "_pause_seconds": 0.5,
    "quota_admitted_seconds": 10.0,
    "quota_full_size_seconds": 5.0,
    "failures_without_step_seconds": 5.0,
    "failures_below_minimum_count": 0,
    "failures_above_quota_count": 0,
    "failures_resized_twice_count": 0,
    "failures_suspended_count": 0,
    "failures_stuck_rounds_count": 0,
    "_missing_ranks_count": 0,
    "_lost_samples": 0,
    "_repeated_samples": 0,
    "_lost_steps": 0,
    "_repeated_steps": 0,
}
"""Ending of a figure → upper limit of its largest value."""
BASELINE: Final = "calm_"
"""Beginning of the figures of a job that nothing disturbs."""


def measure(options: Options) -> Report:
    """Run every part, or the selected ones, each in its own namespace."""
    wanted = options.parts(tuple(PARTS))
    image = cluster_runs.image()
    api = cluster_runs.connected_api()
    bench = ControllerBench(api, ClusterBackend(), image, options)
    for name in wanted:
        with cluster_runs.namespace(api) as space:
            bench.backend = ClusterBackend(Access(namespace=space))
            PARTS[name](bench)
    return report_of(bench.values)


def report_of(values: Mapping[str, list[float]]) -> Report:
    """Return all figures, with the bars of those that have one."""
    report = Report()
    for name, of_rounds in values.items():
        if name.startswith(BASELINE):
            report.baseline(name, of_rounds)
            continue
        summary = report.figure(name, of_rounds)
        for bar in (BARS[ending] for ending in BARS if name.endswith(ending)):
            report.at_most(f"largest of {summary.count}, {name.replace('_', ' ')}", summary.maximum, bar)
    return report
