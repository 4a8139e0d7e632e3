"""A test case of an alert: series over simulated minutes, in promtool's notation.

``0+6x30`` rises by 6 a minute, thirty times; ``1x5`` stays; ``_`` is a scrape that is missing. Time begins at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

JOB: Final = {"namespace": "training", "ddp_job": "digits"}
WHOLE_JOB: Final = (dict[str, str](),)


@dataclass(frozen=True)
class Case:
    """Series, and the alerts that fire for them."""

    alert: str
    what: str
    at: str
    """Time at which the alert is evaluated."""
    series: dict[str, str]
    fires: tuple[dict[str, str], ...] = ()
    """Labels beyond namespace and job of each alert that fires."""
    belongs_to_job: bool = True
    """True if the alert's labels name the job."""

    def __str__(self) -> str:
        return f"{self.alert}: {self.what}"


def of(metric: str, **labels: str) -> str:
    """A series of the job, in pod ``digits-worker-0`` unless another is named."""
    report = {**JOB, "pod": "digits-worker-0", **labels}
    return metric + "{" + ",".join(f'{name}="{value}"' for name, value in report.items()) + "}"


def state(name: str, pod: str = "digits-worker-0") -> str:
    """Series that is 1 while the worker group of a pod is in a state."""
    return of("ddp_worker_group_state", state=name, pod=pod)


RUNNING: Final = state("running")
WAITS_FOR_NODES: Final = {RUNNING: "0x60", state("rendezvous"): "1x60"}
STEPPED: Final = of("ddp_last_step_timestamp_seconds", rank="0")
STARTED: Final = of("ddp_rank_start_time_seconds", rank="0")


def two_runs(first: int) -> dict[str, str]:
    """A run of so many minutes, and another one of the same name after it."""
    runs = {"a": f"1x{first} _x30", "b": f"_x{first + 1} 1x30"}
    return {of("ddp_job_info", run_id=run): course for run, course in runs.items()}


BEFORE: Final = "0 1 2 3 4 5x5 _x2 0x60"
"""A counter of a job that is gone, and of another one of its name, whose pod has the same name, in which it is 0."""
