"""Cases of the alerts about ranks that others wait for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from ddp_trainer.common.metric_names import Metric
from tests.render.rule_case import RUNNING, STARTED, STEPPED, WHOLE_JOB, Case, of

_STEP: Final = 0.103
"""Seconds of a step of four ranks, of which one is late by 50 ms; ``research``'s own measurement, on gloo."""


def _steps(busy: Sequence[float], step: float = _STEP) -> dict[str, str]:
    """An hour of steps that take all ranks ``step`` seconds, in which each is busy for so many milliseconds itself."""
    a_minute = 60 / step
    series = {}
    for number, milliseconds in enumerate(busy):
        own = milliseconds / 1000
        seconds = {Metric.SAMPLED_BUSY: own, Metric.SAMPLED_COMM_EXPOSED: step - own}
        courses = {metric: f"0+{a_minute / 10 * of_step:.3f}x60" for metric, of_step in seconds.items()}
        series |= _sampled(number, courses | {Metric.SAMPLED_STEPS: f"0+{a_minute / 10:.1f}x60"})
    return series


def _sampled(rank: int, courses: Mapping[Metric, str]) -> dict[str, str]:
    """Series of a rank, and of its pod with this one rank."""
    pod = f"digits-worker-{rank}"
    own = {of(metric, rank=str(rank), pod=pod): course for metric, course in courses.items()}
    return own | {of(metric.replace("ddp_", "ddp_pod_", 1), pod=pod): course for metric, course in courses.items()}


_OPENS_FILES: Final = _sampled(3, {Metric.SAMPLED_STEPS: "0+58x60", Metric.SAMPLED_BUSY: "0+1.2x10 12+4.6x5 35+1.2x40"})
_ONE_IS_LATE: Final = _steps((30, 30, 90, 30))
_FROM_THE_START: Final = {series: f"_x1 {course}" for series, course in _ONE_IS_LATE.items()}
STRAGGLERS: Final = (
    *(
        Case("DdpStraggler", f"50 ms in {where}", "25m", _steps(busy), ({"rank": "2"},))
        for where, busy in (
            ("forward", (20.5, 18.9, 69.2, 14.2)),
            ("backward", (18.2, 19.8, 71.9, 19.2)),
            ("data", (16.2, 15.8, 70.6, 15.7)),
        )
    ),
    Case("DdpStraggler", "two of 8", "25m", _steps((80, 80, 80, 95, 80, 94, 80, 80)), ({"rank": "3"}, {"rank": "5"})),
    Case("DdpStraggler", "nobody is late", "60m", _steps((18.0, 18.5, 17.6, 18.0), step=0.0656)),
    Case("DdpStraggler", "half as much again, of a step that is nearly all network", "60m", _steps((2, 2, 3, 2))),
    Case("DdpStraggler", "of two ranks none is the middle one", "60m", _steps((20, 70))),
    Case("DdpStraggler", "a rank opens its files for five minutes", "30m", _steps((20, 20, 20)) | _OPENS_FILES),
    Case("DdpCommBound", "four fifths of a step", "40m", _steps((20, 20, 20, 20)), WHOLE_JOB),
    Case("DdpCommBound", "a tenth", "60m", _steps((92, 93, 92, 92))),
    Case("DdpCommBound", "they wait for one of them from the first step on", "31m", _FROM_THE_START),
    Case("DdpCommBound", "they wait for one of them, not for the network", "60m", _ONE_IS_LATE),
)


def _positions(courses: Mapping[str, str], group: str = "default") -> dict[str, str]:
    """Series of the last collective of each rank, whose process is up."""
    series = {RUNNING: "1x30"}
    for rank, course in courses.items():
        report = {"rank": rank, "pod": f"digits-worker-{rank}"}
        series |= {of(Metric.ENQUEUED, process_group=group, **report): course, of(Metric.RANK_UP, **report): "1x30"}
    return series


_STALLED: Final = "0+60x4 240x26"
_BEHIND: Final = {"0": "0+10x4 41x26", "1": "0+10x4 40x26", "2": "0+10x4 41x26"}
_FIRST: Final = {"0": "1x30", "1": "0x30", "2": "1x30"}
_APART: Final = {"0": "5+10x30", "1": "4+10x30"}
_NO_MEMBER: Final = _positions({"0": "9x30", "1": "0x30"}, group="1")
_IS_DOWN: Final = {of(Metric.RANK_UP, rank="1", pod="digits-worker-1"): "0x30"}
_CULPRIT: Final = ({"rank": "1", "pod": "digits-worker-1"},)

HANGS: Final = (
    Case("DdpRankBehindCollective", "it stands", "11m", {STEPPED: _STALLED} | _positions(_BEHIND), _CULPRIT),
    Case("DdpRankBehindCollective", "no first step", "9m", {STARTED: "0x30"} | _positions(_FIRST), _CULPRIT),
    Case("DdpRankBehindCollective", "for three minutes", "8m", {STEPPED: _STALLED} | _positions(_BEHIND)),
    Case("DdpRankBehindCollective", "ranks are scraped one by one", "30m", {STEPPED: "0+60x30"} | _positions(_APART)),
    Case("DdpRankBehindCollective", "an evaluation reduces on", "30m", {STEPPED: _STALLED} | _positions(_APART)),
    Case("DdpRankBehindCollective", "all wait", "30m", {STEPPED: _STALLED} | _positions({"0": "9x30", "1": "9x30"})),
    Case("DdpRankBehindCollective", "it does not belong to the group", "30m", {STEPPED: _STALLED} | _NO_MEMBER),
    Case("DdpRankBehindCollective", "its process is gone", "30m", {STEPPED: _STALLED} | _positions(_BEHIND) | _IS_DOWN),
)
