"""What each alert fires for, and what it stays silent for: series over simulated minutes, in promtool's notation.

``0+6x30`` rises by 6 a minute, thirty times; ``1x5`` stays; ``_`` is a scrape that is missing. Time begins at 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

JOB: Final = {"namespace": "training", "ddp_job": "digits"}
WHOLE_JOB: Final = (dict[str, str](),)


@dataclass(frozen=True)
class Case:
    """One course of things."""

    alert: str
    what: str
    at: str
    """The moment that is looked at."""
    series: dict[str, str]
    fires: tuple[dict[str, str], ...] = ()
    """Labels beyond namespace and job of each alert that fires."""
    belongs_to_job: bool = True
    """Whether the alert's labels name the job."""

    def __str__(self) -> str:
        return f"{self.alert}: {self.what}"


def of(metric: str, **labels: str) -> str:
    """A series of the job, in pod ``digits-worker-0`` unless another is named."""
    told = {**JOB, "pod": "digits-worker-0", **labels}
    return metric + "{" + ",".join(f'{name}="{value}"' for name, value in told.items()) + "}"


def _state(state: str, pod: str = "digits-worker-0") -> str:
    return of("ddp_worker_group_state", state=state, pod=pod)


def _restarts(cause: str) -> str:
    return of("ddp_worker_restarts_total", cause=cause)


def _failures(reason: str) -> str:
    return of("ddp_worker_failures_total", reason=reason)


def _phase(phase: str) -> str:
    return of("ddp_step_phase_seconds_total", phase=phase, rank="0")


_STEPPED: Final = of("ddp_last_step_timestamp_seconds", rank="0")
_SAMPLES: Final = of("ddp_samples_total", rank="0")
_RUNNING: Final = _state("running")

PROGRESS: Final = (
    Case("DdpTrainingStalled", "no step for 13 minutes", "13m", {_STEPPED: "0x30", _RUNNING: "1x30"}, WHOLE_JOB),
    Case("DdpTrainingStalled", "12 minutes may yet be a long step", "12m", {_STEPPED: "0x30", _RUNNING: "1x30"}),
    Case("DdpTrainingStalled", "it steps", "30m", {_STEPPED: "0+60x30", _RUNNING: "1x30"}),
    Case(
        "DdpTrainingStalled",
        "it waits for nodes",
        "30m",
        {_STEPPED: "0x30", _RUNNING: "0x30", _state("rendezvous"): "1x30"},
    ),
    Case(
        "DdpRankStopped",
        "stopped for 2 minutes",
        "3m",
        {of("ddp_rank_stopped", rank="2"): "0 1x5", of("ddp_rank_stopped", rank="1"): "0x6"},
        ({"rank": "2", "pod": "digits-worker-0"},),
    ),
    Case(
        "DdpRankStopped", "waits for its disk now and then", "6m", {of("ddp_rank_stopped", rank="2"): "1 1 0 1 1 0 1"}
    ),
    Case(
        "DdpRankDown",
        "no process for 5 minutes",
        "6m",
        {of("ddp_rank_up", rank="1"): "1 0x10", _RUNNING: "1x10"},
        ({"rank": "1"},),
    ),
    Case("DdpRankDown", "the job is over", "9m", {of("ddp_rank_up", rank="1"): "0x10", _RUNNING: "0x10"}),
    Case(
        "DdpRankDown",
        "another pod has the rank now",
        "9m",
        {
            of("ddp_rank_up", rank="1"): "0x10",
            of("ddp_rank_up", rank="1", pod="digits-worker-2"): "1x10",
            _RUNNING: "1x10",
        },
    ),
    Case(
        "DdpLauncherDown",
        "gone for 5 minutes",
        "6m",
        {of("ddp_agent_up"): "1 0x10"},
        ({"pod": "digits-worker-0"},),
    ),
    Case("DdpLauncherDown", "it is there", "9m", {of("ddp_agent_up"): "1x10"}),
    Case(
        "DdpThroughputDrop",
        "four hours at 100 samples a second, then half an hour at 40",
        "270m",
        {_SAMPLES: "0+6000x240 1442400+2400x30"},
        WHOLE_JOB,
    ),
    Case("DdpThroughputDrop", "80 of 100", "270m", {_SAMPLES: "0+6000x240 1444800+4800x30"}),
    Case("DdpThroughputDrop", "too young for a median", "50m", {_SAMPLES: "0+6000x20 122400+2400x30"}),
    Case("DdpThroughputDrop", "a stalled job is told of by another alert", "270m", {_SAMPLES: "0+6000x240 1440000x30"}),
    Case(
        "DdpInputBound",
        "half of the time",
        "18m",
        {_phase("data_wait"): "0+30x30", _phase("forward"): "0+30x30"},
        ({"phase": "data_wait"},),
    ),
    Case("DdpInputBound", "a tenth", "29m", {_phase("data_wait"): "0+6x30", _phase("forward"): "0+54x30"}),
    Case(
        "DdpInputBound",
        "a new epoch opens its files for 5 minutes",
        "29m",
        {_phase("data_wait"): "0x10 30+30x5 180x15", _phase("forward"): "0+30x30"},
    ),
    *(
        Case(
            "DdpLossNonFinite",
            f"it became {value}",
            "1m",
            {of("ddp_loss"): f"0.5 {value} {value}"},
            ({"pod": "digits-worker-0"},),
        )
        for value in ("NaN", "Inf", "-Inf")
    ),
    Case("DdpLossNonFinite", "it is large", "2m", {of("ddp_loss"): "0.5 1e30 1e30"}),
)
RECOVERY: Final = (
    Case("DdpRestartLoop", "three failures", "20m", {_restarts("failure"): "0 0 1 1 2 2 3x30"}, WHOLE_JOB),
    Case("DdpRestartLoop", "two failures", "60m", {_restarts("failure"): "0 1 2x60"}),
    Case(
        "DdpRestartLoop", "nodes come and go", "30m", {_restarts("membership"): "0+1x30", _restarts("failure"): "0x30"}
    ),
    Case("DdpRestartLoop", "three failures of yesterday", "200m", {_restarts("failure"): "0 1 2 3x200"}),
    Case("DdpHangsRepeated", "two hangs", "30m", {_restarts("hang"): "0 0 1 1 2x30"}, WHOLE_JOB),
    Case("DdpHangsRepeated", "one hang", "30m", {_restarts("hang"): "0 0 1x30"}),
    Case(
        "DdpRestartBudgetLow",
        "one of three is left",
        "4m",
        {of("ddp_restarts_remaining"): "3 2 1x5", _restarts("failure"): "0 1 2x5"},
        WHOLE_JOB,
    ),
    Case(
        "DdpRestartBudgetLow",
        "it never had more, and nothing has failed",
        "4m",
        {of("ddp_restarts_remaining"): "0x5", _restarts("failure"): "0x5"},
    ),
    Case(
        "DdpRestartBudgetLow",
        "two are left",
        "4m",
        {of("ddp_restarts_remaining"): "3 2x5", _restarts("failure"): "0 1x5"},
    ),
    *(
        Case("DdpOutOfMemory", reason, "5m", {_failures(reason): "0 0 1x10"}, ({"reason": reason},))
        for reason in ("host_oom", "gpu_oom")
    ),
    Case("DdpOutOfMemory", "a rank died of something else", "5m", {_failures("sigsegv"): "0 0 1x10"}),
    *(
        Case("DdpCollectivesFailing", reason, "5m", {_failures(reason): "0 0 1x10"}, WHOLE_JOB)
        for reason in ("collective_timeout", "collective_error")
    ),
    Case("DdpCollectivesFailing", "a rank died of its own code", "5m", {_failures("python_exception"): "0 0 1x10"}),
    Case("DdpRendezvousSlow", "nobody trains", "11m", {_state("rendezvous"): "1x20", _RUNNING: "0x20"}, WHOLE_JOB),
    Case(
        "DdpRendezvousSlow", "it came about in 9 minutes", "15m", {_state("rendezvous"): "1x9 0x9", _RUNNING: "0x9 1x9"}
    ),
    Case(
        "DdpRendezvousSlow",
        "one waits, the others train",
        "19m",
        {_state("rendezvous", pod="digits-worker-3"): "1x20", _RUNNING: "1x20"},
    ),
    Case("DdpWorldDegraded", "3 of 4", "16m", {of("ddp_nodes"): "3x20", of("ddp_nodes_desired"): "4x20"}, WHOLE_JOB),
    Case("DdpWorldDegraded", "4 of 4", "19m", {of("ddp_nodes"): "4x20", of("ddp_nodes_desired"): "4x20"}),
    Case(
        "DdpStepsLost",
        "50 of 150",
        "30m",
        {of("ddp_lost_steps_total"): "0x10 50x50", of("ddp_steps_total", rank="0"): "0+5x60"},
        WHOLE_JOB,
    ),
    Case(
        "DdpStepsLost",
        "the pod that takes up rank 0 brings the count along",
        "30m",
        {
            of("ddp_lost_steps_total"): "0x10 _x50",
            of("ddp_lost_steps_total", pod="digits-worker-1"): "_x12 50x50",
            of("ddp_steps_total", rank="0"): "0+5x60",
        },
        WHOLE_JOB,
    ),
    Case(
        "DdpStepsLost",
        "5 of 150",
        "30m",
        {of("ddp_lost_steps_total"): "0x10 5x50", of("ddp_steps_total", rank="0"): "0+5x60"},
    ),
)


def _saves(result: str) -> str:
    return of("ddp_checkpoint_saves_total", result=result)


_BLOCKED: Final = of("ddp_checkpoint_blocking_seconds_total")
CHECKPOINTS: Final = (
    Case(
        "DdpCheckpointFailing",
        "none succeeds",
        "8m",
        {_saves("failure"): "0 0 1+1x30", _saves("success"): "4x30"},
        WHOLE_JOB,
    ),
    Case(
        "DdpCheckpointFailing",
        "the next succeeds",
        "20m",
        {_saves("failure"): "0 0 1x30", _saves("success"): "0 0 0 1x30"},
    ),
    Case("DdpCheckpointFailing", "none is due", "20m", {_saves("failure"): "0x30", _saves("success"): "0x30"}),
    Case("DdpCheckpointBlocking", "a fifth of the time", "45m", {_BLOCKED: "0+12x60"}, WHOLE_JOB),
    Case("DdpCheckpointBlocking", "a twentieth", "50m", {_BLOCKED: "0+3x60"}),
)
_POD: Final = 'namespace="training",pod="digits-worker-0"'
EXPORTER: Final = (
    Case(
        "DdpExporterDown",
        "of the platform's PodMonitor, and it never answered",
        "6m",
        {f'up{{job="training/ddp-workers",{_POD}}}': "0x20"},
        ({"namespace": "training", "pod": "digits-worker-0"},),
        belongs_to_job=False,
    ),
    Case(
        "DdpExporterDown",
        "of a job's own PodMonitor, and it has answered before",
        "9m",
        {f'up{{job="training/digits",{_POD}}}': "1 1 0x20", of("ddp_build_info", version="0.1.0"): "1 1 _x20"},
        ({"namespace": "training", "pod": "digits-worker-0"},),
        belongs_to_job=False,
    ),
    Case("DdpExporterDown", "a pod of others", "9m", {f'up{{job="training/shop",{_POD}}}': "0x20"}),
    Case("DdpExporterDown", "one scrape is missing", "9m", {f'up{{job="training/ddp-workers",{_POD}}}': "1x5 0 1x5"}),
    Case(
        "DdpExporterStaleBoards",
        "one board",
        "6m",
        {of("ddp_exporter_stale_boards"): "1x10"},
        ({"pod": "digits-worker-0"},),
    ),
    Case("DdpExporterStaleBoards", "none", "9m", {of("ddp_exporter_stale_boards"): "0x10"}),
)
CASES: Final = (*PROGRESS, *RECOVERY, *CHECKPOINTS, *EXPORTER)
