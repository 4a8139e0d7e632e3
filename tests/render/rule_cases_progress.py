"""Cases of the alerts about progress."""

from __future__ import annotations

from typing import Final

from tests.render.rule_case import RUNNING, STARTED, STEPPED, WAITS_FOR_NODES, WHOLE_JOB, Case, of, two_runs

_SAMPLES: Final = of("ddp_pod_samples_total")
_SLOWER: Final = "0+6000x240 1442400+2400x30"
_STOPPED: Final = of("ddp_rank_stopped", rank="2")
_STOPPED_RANK: Final = ({"rank": "2", "pod": "digits-worker-0"},)
_WORKS: Final = of("ddp_rank_stopped", rank="1")
_UP: Final = of("ddp_rank_up", rank="1")
_UP_ELSEWHERE: Final = of("ddp_rank_up", rank="1", pod="digits-worker-2")
_LOSS: Final = of("ddp_loss")
_RUN: Final = of("ddp_job_info", run_id="a")


def _phase(phase: str) -> str:
    return of("ddp_pod_step_phase_seconds_total", phase=phase)


_DATA: Final = _phase("data_wait")
_FORWARD: Final = _phase("forward")
PROGRESS: Final = (
    Case("DdpTrainingStalled", "no step for 13 minutes", "13m", {STEPPED: "0x30", RUNNING: "1x30"}, WHOLE_JOB),
    Case("DdpTrainingStalled", "12 minutes may yet be a long step", "12m", {STEPPED: "0x30", RUNNING: "1x30"}),
    Case("DdpTrainingStalled", "ranks restart", "30m", {STEPPED: "0x40", RUNNING: "1x40", STARTED: "0x15 1500x25"}),
    Case("DdpTrainingStalled", "it steps", "30m", {STEPPED: "0+60x30", RUNNING: "1x30"}),
    Case("DdpTrainingStalled", "it waits for nodes", "30m", {STEPPED: "0x30", **WAITS_FOR_NODES}),
    Case("DdpRankStopped", "for 2 minutes", "3m", {_STOPPED: "0 1x5", _WORKS: "0x6"}, _STOPPED_RANK),
    Case("DdpRankStopped", "it waits for its disk now and then", "6m", {_STOPPED: "1 1 0 1 1 0 1"}),
    Case("DdpRankDown", "no process for 5 minutes", "6m", {_UP: "1 0x10", RUNNING: "1x10"}, ({"rank": "1"},)),
    Case("DdpRankDown", "the job is over", "9m", {of("ddp_rank_up", rank="1"): "0x10", RUNNING: "0x10"}),
    Case("DdpRankDown", "another pod has the rank now", "9m", {_UP: "0x10", _UP_ELSEWHERE: "1x10", RUNNING: "1x10"}),
    Case("DdpLauncherDown", "for 5 minutes", "6m", {of("ddp_agent_up"): "1 0x10"}, ({"pod": "digits-worker-0"},)),
    Case("DdpLauncherDown", "it is there", "9m", {of("ddp_agent_up"): "1x10"}),
    Case("DdpThroughputDrop", "40 of 100 a second", "270m", {_SAMPLES: _SLOWER}, WHOLE_JOB),
    Case("DdpThroughputDrop", "of its run", "270m", {_SAMPLES: _SLOWER, _RUN: "1x270"}, ({"run_id": "a"},)),
    Case("DdpThroughputDrop", "80 of 100", "270m", {_SAMPLES: "0+6000x240 1444800+4800x30"}),
    Case("DdpThroughputDrop", "of another run", "270m", {_SAMPLES: "0+6000x240 0+2400x30", **two_runs(240)}),
    Case("DdpThroughputDrop", "too young for a median", "50m", {_SAMPLES: "0+6000x20 122400+2400x30"}),
    Case("DdpThroughputDrop", "a stalled job has an alert already", "270m", {_SAMPLES: "0+6000x240 1440000x30"}),
    Case("DdpInputBound", "half", "18m", {_DATA: "0+30x30", _FORWARD: "0+30x30"}, ({"phase": "data_wait"},)),
    Case("DdpInputBound", "a tenth", "29m", {_DATA: "0+6x30", _FORWARD: "0+54x30"}),
    Case("DdpInputBound", "a new epoch opens its files", "29m", {_DATA: "0x10 30+30x5 180x15", _FORWARD: "0+30x30"}),
    *(
        Case("DdpLossNonFinite", value, "1m", {_LOSS: f"0.5 {value} {value}"}, ({"pod": "digits-worker-0"},))
        for value in ("NaN", "Inf", "-Inf")
    ),
    Case("DdpLossNonFinite", "it is large", "2m", {_LOSS: "0.5 1e30 1e30"}),
)
