"""Cases of the alerts about restarts, failures and lost time."""

from __future__ import annotations

from typing import Final

from ddp_trainer.common.metric_names import Metric
from tests.render.rule_case import BEFORE, RUNNING, WHOLE_JOB, Case, of, state


def _restarts(cause: str) -> str:
    return of("ddp_worker_restarts_total", cause=cause)


def _failures(reason: str) -> str:
    return of("ddp_worker_failures_total", reason=reason)


def _time(state: str, pod: str = "digits-worker-0") -> str:
    return of(Metric.JOB_TIME, state=state, pod=pod)


def _account(productive: str, **others: str) -> dict[str, str]:
    """The account of a job that has lost nothing, of the states that are named."""
    seconds = {"productive": productive, **others}
    return {_LOST: "0x200"} | {_time(state): course for state, course in seconds.items()}


_LOST: Final = of(Metric.LOST_PROGRESS)

_MOVED: Final = {
    _LOST: "0x10 _x50",
    _time("productive"): "0+40x10 _x50",
    of(Metric.LOST_PROGRESS, pod="digits-worker-1"): "_x12 100x50",
    _time("productive", pod="digits-worker-1"): "_x12 400x50",
}
_SHORT: Final = {
    series: f"_x{1 + 18 * number} {course}"
    for number in range(6)
    for pod in [f"digits-worker-{number}"]
    for series, course in (
        (_time("productive", pod), f"{270 * number}+15x9"),
        (_time("scheduling", pod), f"{810 * number}+45x9"),
        (of(Metric.LOST_PROGRESS, pod=pod), "0x9"),
    )
}
_LEFT: Final = of("ddp_restarts_remaining")
RECOVERY: Final = (
    Case("DdpRestartLoop", "three failures", "20m", {_restarts("failure"): "0 0 1 1 2 2 3x30"}, WHOLE_JOB),
    Case("DdpRestartLoop", "two failures", "60m", {_restarts("failure"): "0 1 2x60"}),
    Case("DdpRestartLoop", "nodes come and go", "30m", {_restarts("resize"): "0+1x30", _restarts("failure"): "0x30"}),
    Case("DdpRestartLoop", "three failures of yesterday", "200m", {_restarts("failure"): "0 1 2 3x200"}),
    Case("DdpHangsRepeated", "two hangs", "30m", {_restarts("hang"): "0 0 1 1 2x30"}, WHOLE_JOB),
    Case("DdpHangsRepeated", "one hang", "30m", {_restarts("hang"): "0 0 1x30"}),
    Case("DdpRestartBudgetLow", "one of three", "4m", {_LEFT: "3 2 1x5", _restarts("failure"): "0 1 2x5"}, WHOLE_JOB),
    Case("DdpRestartBudgetLow", "nothing has failed", "4m", {_LEFT: "0x5", _restarts("failure"): "0x5"}),
    Case("DdpRestartBudgetLow", "two are left", "4m", {_LEFT: "3 2x5", _restarts("failure"): "0 1x5"}),
    *(
        Case("DdpOutOfMemory", reason, "5m", {_failures(reason): "0 0 1x10"}, ({"reason": reason},))
        for reason in ("host_oom", "gpu_oom")
    ),
    Case("DdpOutOfMemory", "a rank died of something else", "5m", {_failures("sigsegv"): "0 0 1x10"}),
    Case("DdpGpuFault", "one rank", "5m", {_failures("gpu_fault"): "0 0 1x10"}, WHOLE_JOB),
    Case("DdpGpuFault", "a rank found no memory on its GPU", "5m", {_failures("gpu_oom"): "0 0 1x10"}),
    Case("DdpGpuFault", "in the job of this name before", "20m", {_failures("gpu_fault"): BEFORE}),
    *(
        Case("DdpCollectivesFailing", reason, "5m", {_failures(reason): "0 0 1x10"}, WHOLE_JOB)
        for reason in ("collective_timeout", "collective_error")
    ),
    Case("DdpCollectivesFailing", "a rank failed with an exception", "5m", {_failures("python_exception"): "0 0 1x10"}),
    Case("DdpRendezvousSlow", "nobody trains", "11m", {state("rendezvous"): "1x20", RUNNING: "0x20"}, WHOLE_JOB),
    Case("DdpRendezvousSlow", "in 9 minutes", "15m", {state("rendezvous"): "1x9 0x9", RUNNING: "0x9 1x9"}),
    Case("DdpRendezvousSlow", "others train", "19m", {state("rendezvous", "digits-worker-3"): "1x20", RUNNING: "1x20"}),
    Case("DdpWorldDegraded", "3 of 4", "16m", {of("ddp_nodes"): "3x20", of("ddp_nodes_desired"): "4x20"}, WHOLE_JOB),
    Case("DdpWorldDegraded", "4 of 4", "19m", {of("ddp_nodes"): "4x20", of("ddp_nodes_desired"): "4x20"}),
    Case("DdpRestartLoop", "three failures of the job of this name before", "20m", {_restarts("failure"): BEFORE}),
    Case("DdpHangsRepeated", "two hangs of the job of this name before", "20m", {_restarts("hang"): BEFORE}),
    Case("DdpOutOfMemory", "in the job of this name before", "20m", {_failures("host_oom"): BEFORE}),
    Case("DdpCollectivesFailing", "in the job of this name before", "20m", {_failures("collective_error"): BEFORE}),
    Case("DdpStepsLost", "a quarter", "30m", {_LOST: "0x10 100x50", _time("productive"): "0+40x10 400x50"}, WHOLE_JOB),
    Case("DdpStepsLost", "the pod that takes up rank 0 brings the account along", "30m", _MOVED, WHOLE_JOB),
    Case("DdpStepsLost", "10 of 400 seconds", "30m", {_LOST: "0x10 10x50", _time("productive"): "0+40x10 400x50"}),
    Case("DdpStepsLost", "of before", "30m", {_LOST: "0x5 300x4 _x2 0x50", _time("productive"): "0+60x9 _x2 0+60x50"}),
    Case("DdpGoodputLow", "a third for restarts", "90m", _account("0+40x100", restart="0+20x100"), WHOLE_JOB),
    Case("DdpGoodputLow", "a fifth lost", "90m", _account("0+60x100") | {_LOST: "0+12x100"}, WHOLE_JOB),
    Case("DdpGoodputLow", "pods live for ten minutes, and report the wait for their node", "99m", _SHORT, WHOLE_JOB),
    Case("DdpGoodputLow", "a tenth", "100m", _account("0+54x100", restart="0+6x100")),
    Case("DdpGoodputLow", "suspended", "100m", _account("0+60x40 _x30 2400+60x100", suspended="0x40 _x30 1800x100")),
    Case("DdpGoodputLow", "it has just begun", "39m", _account("0x10 0+60x100", init="0+60x10 600x100")),
    Case("DdpGoodputLow", "the job before only started", "100m", _account("0x40 _ 0+60x100", init="0+60x40 _ 0x100")),
)
