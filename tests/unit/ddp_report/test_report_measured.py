"""Figures of a report, computed from the series of a job."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest

from ddp_report.plot_data import build_plots
from ddp_report.series import MOST_READINGS, POD, Series, read
from ddp_report.time_series import Change, JobTimeSeries, Kind, summarize_series
from ddp_trainer.common.metric_names import Metric
from ddp_trainer.common.time_classes import JobTime, Phase
from tests.support.report_cases import START, a_job, a_report, counter, times


def of(series: list[Series]) -> JobTimeSeries:
    found = summarize_series(series)
    assert found is not None
    return found


def test_throughput_is_that_of_all_pods_and_a_slow_rank_shows_in_its_own_time() -> None:
    found = of(a_job(16, slow=3))
    assert found.throughput == pytest.approx([128.0] * found.timeline.count)
    own = {one.rank: one.own[5] for one in found.ranks}
    assert own[3] == pytest.approx(0.099)
    assert own[4] == pytest.approx(0.09)
    assert {one.pod for one in found.ranks} == {"digits-worker-0", "digits-worker-1"}
    assert found.phases[Phase.BACKWARD][0] == pytest.approx(2 * 0.6 * found.timeline.width)


def test_a_loss_that_is_no_number_is_told_and_not_drawn() -> None:
    losses = [1.0, math.nan, 0.5, math.inf, 0.25]
    found = of([Series(Metric.LOSS, times(5), [*losses])])
    assert [value for value in found.loss if value is not None] == [1.0, 0.5, 0.25] or len(found.broken) == 2
    assert len(found.broken) == 2
    assert all(value is None or math.isfinite(value) for value in found.loss)


def user_value(name: str, rank: str, values: list[float | None], pod: str = "a") -> Series:
    return Series(Metric.USER_VALUE, times(len(values)), values, {"name": name, "rank": rank, POD: pod})


def test_a_value_of_the_script_is_that_of_the_lowest_rank_wherever_it_ran() -> None:
    others = [
        user_value("acc", "3", [9.0] * 4),
        user_value("acc", "x", [7.0] * 4),
        user_value("never", "0", [None] * 4),
    ]
    moved = user_value("acc", "0", [None, None, math.nan, 0.75], pod="b")
    found = of([*others, user_value("acc", "0", [0.5, 0.6, None, None]), moved]).user_values
    assert found.keys() == {"acc"}
    assert found["acc"].last == 0.75
    assert 9.0 not in found["acc"].values
    assert len(found["acc"].broken) == 1


def test_time_that_is_told_after_a_restart_is_drawn_where_it_was_spent() -> None:
    """The ledger pauses for 20 s, and then counts them as a restart."""
    productive = [float(min(at, 20)) for at in range(40)] + [20.0 + at for at in range(20)]
    restart = [0.0] * 40 + [20.0] * 20
    spent = {JobTime.PRODUCTIVE: productive, JobTime.RESTART: restart}
    found = of(
        [Series(Metric.JOB_TIME, times(60), values, {"state": state, POD: "a"}) for state, values in spent.items()]
    )
    parts = found.timeline.part(START + 30)
    assert found.states[JobTime.RESTART][parts] == pytest.approx(found.timeline.width * 20 / 20, rel=0.1)
    assert found.states[JobTime.PRODUCTIVE][parts] == pytest.approx(0.0, abs=0.1)
    assert found.spent == {JobTime.PRODUCTIVE: 39.0, JobTime.RESTART: 20.0}


def test_the_ledger_goes_on_over_pods_and_is_not_counted_twice() -> None:
    first = Series(Metric.JOB_TIME, times(30), [*map(float, range(30))], {"state": JobTime.PRODUCTIVE, POD: "a"})
    later, counts = [START + 40 + at for at in range(30)], [40.0 + at for at in range(30)]
    second = Series(Metric.JOB_TIME, later, counts, {"state": JobTime.PRODUCTIVE, POD: "b"})
    states = of([first, second]).states[JobTime.PRODUCTIVE]
    assert sum(value or 0.0 for value in states) == pytest.approx(69.0)


def test_changes_are_told_once_however_many_pods_count_them() -> None:
    restarts = [0.0] * 10 + [1.0] * 10 + [2.0] * 10
    world = [4.0] * 20 + [6.0] * 10
    series = [
        Series(Metric.RESTARTS, times(30), values, {"cause": cause, POD: name})
        for name in ("a", "b")
        for cause, values in (("failure", restarts), ("resize", [0.0] * 20 + [1.0] * 10))
    ]
    series += [Series(Metric.WORLD_SIZE, times(30), world, {POD: name}) for name in ("a", "b")]
    found = of(series)
    assert found.changes == (
        Change(START + 10, Kind.RESTART, "restart: failure", "restart"),
        Change(START + 20, Kind.RESTART, "restart: failure", "restart"),
        Change(START + 20, Kind.SCALE, "resize"),
        Change(START + 20, Kind.SCALE, "4 to 6 ranks", "6 ranks"),
    )
    assert found.worlds == (4, 6)


def test_a_pod_that_was_left_behind_does_not_tell_the_world_size() -> None:
    series = []
    for pod, missing, world, group in (("old", 0, 2.0, 1.0), ("new", 5, 4.0, 2.0)):
        for metric, value in ((Metric.WORLD_SIZE, world), (Metric.RENDEZVOUS_ROUND, group)):
            series.append(Series(metric, times(10), [None] * missing + [value] * (10 - missing), {POD: pod}))
    assert of(series).worlds == (2, 4)


def test_one_rank_with_two_readings_is_enough_and_less_is_nothing() -> None:
    assert of(a_job(1, readings=2)).ranks[0].rank == 0
    assert summarize_series(a_job(1, readings=1)) is None
    assert summarize_series([]) is None


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", '{"version": 2, "times": [], "series": []}', '{"version": 1, "times": ["a"], "series": []}'),
        '{"version": 1, "times": [1], "series": [{"name": "x", "labels": {}, "values": [1, 2]}]}',
        '{"version": 1, "times": [1], "series": [{"name": "x", "labels": [], "values": [1]}]}',
        *("[" * 100_000, json.dumps({"version": 1, "times": list(range(MOST_READINGS + 1)), "series": []})),
    ],
    ids=lambda text: text[:40],
)
def test_what_is_no_history_is_no_series(text: str) -> None:
    assert read(text, "pod") == []


def test_readings_of_a_clock_that_went_back_are_left_out() -> None:
    document = {"version": 1, "times": [10, 11, 5, 12], "series": [{"name": "x", "labels": {}, "values": [1, 2, 3, 4]}]}
    [found] = read(json.dumps(document), "pod")
    assert (found.times, found.values) == ([10, 11, 12], [1, 2, 4])


def test_ranks_that_moved_to_another_pod_stay_what_they_did_on_each() -> None:
    series = [counter(Metric.STEPS, at, 20, rank="0", local_rank="0", pod=pod) for at, pod in ((1, "a"), (2, "b"))]
    assert [(one.rank, one.pod, one.steps) for one in of(series).ranks] == [(0, "a", 19), (0, "b", 38)]


def test_what_was_before_a_prometheus_began_to_look_is_no_change_and_no_peak() -> None:
    seen = [None] * 10 + [500.0 + at for at in range(20)]
    series = [
        Series(Metric.SAMPLES, times(30), seen, {POD: "a"}, is_complete=False),
        Series(Metric.RESTARTS, times(30), [None] * 10 + [3.0] * 20, {"cause": "failure", POD: "a"}, is_complete=False),
    ]
    found = of(series)
    assert {round(value, 6) for value in found.throughput if value is not None} == {1.0}
    assert found.changes == ()


def test_the_plot_of_the_throughput_has_the_mean_of_the_tile() -> None:
    report = a_report(a_job(4, readings=12))
    assert report.measured is not None
    idle = replace(report.measured, throughput=(0.0, 100.0, 300.0, None))
    assert replace(report, measured=idle).throughput == 200.0
    assert build_plots(idle, was_suspended=False)[0].caption.startswith("Mean 200 samples/s, from 0 to 300")
