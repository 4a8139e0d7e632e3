"""Does the job get on: what each of these alerts fires for, and what it stays silent for."""

from __future__ import annotations

from typing import Final

from tests.render.rule_case import RUNNING, STEPPED, WHOLE_JOB, Case, of, state

_SAMPLES: Final = of("ddp_pod_samples_total")


def _phase(phase: str) -> str:
    return of("ddp_pod_step_phase_seconds_total", phase=phase)


PROGRESS: Final = (
    Case("DdpTrainingStalled", "no step for 13 minutes", "13m", {STEPPED: "0x30", RUNNING: "1x30"}, WHOLE_JOB),
    Case("DdpTrainingStalled", "12 minutes may yet be a long step", "12m", {STEPPED: "0x30", RUNNING: "1x30"}),
    Case(
        "DdpTrainingStalled",
        "its ranks were started anew, and load",
        "30m",
        {STEPPED: "0x40", RUNNING: "1x40", of("ddp_rank_start_time_seconds", rank="0"): "0x15 1500x25"},
    ),
    Case("DdpTrainingStalled", "it steps", "30m", {STEPPED: "0+60x30", RUNNING: "1x30"}),
    Case(
        "DdpTrainingStalled",
        "it waits for nodes",
        "30m",
        {STEPPED: "0x30", RUNNING: "0x30", state("rendezvous"): "1x30"},
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
        {of("ddp_rank_up", rank="1"): "1 0x10", RUNNING: "1x10"},
        ({"rank": "1"},),
    ),
    Case("DdpRankDown", "the job is over", "9m", {of("ddp_rank_up", rank="1"): "0x10", RUNNING: "0x10"}),
    Case(
        "DdpRankDown",
        "another pod has the rank now",
        "9m",
        {
            of("ddp_rank_up", rank="1"): "0x10",
            of("ddp_rank_up", rank="1", pod="digits-worker-2"): "1x10",
            RUNNING: "1x10",
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
    Case(
        "DdpThroughputDrop",
        "slower than its own run was",
        "270m",
        {_SAMPLES: "0+6000x240 1442400+2400x30", of("ddp_job_info", run_id="a"): "1x270"},
        ({"run_id": "a"},),
    ),
    Case("DdpThroughputDrop", "80 of 100", "270m", {_SAMPLES: "0+6000x240 1444800+4800x30"}),
    Case(
        "DdpThroughputDrop",
        "slower than the job of this name before",
        "270m",
        {
            _SAMPLES: "0+6000x240 0+2400x30",
            of("ddp_job_info", run_id="a"): "1x240 _x30",
            of("ddp_job_info", run_id="b"): "_x241 1x30",
        },
    ),
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
