"""The top of a report: its story, its marks on the time axis, and its tiles."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from ddp_report.html_report import render_html
from ddp_report.plot_data import mark_events
from ddp_report.series import POD, Series, Timeline
from ddp_report.story import MOST_SENTENCES, summarize_run
from ddp_report.time_series import Change, Kind
from ddp_trainer.common.metric_names import Metric
from kubectl_ddp.status.describe import header
from kubectl_ddp.status.job_tables import job_table
from kubectl_ddp.util.text_table import Style
from tests.support.report_cases import START, a_job, a_killed_worker, a_report, times

DONE: Mapping[str, object] = {"result": "succeeded", "steps": 690, "world_size": 4}


def without(series: Sequence[Series], *names: str) -> list[Series]:
    return [sery for sery in series if sery.name not in names]


def test_a_killed_worker_is_named_with_its_time_and_both_recoveries() -> None:
    assert a_report(a_killed_worker()).story == (
        "Rank 3 was killed at 20.2 s.",
        "The other 2 ranks trained on after 500 ms, and all 4 ranks trained again within 10.8 s.",
    )


def test_a_pod_that_records_no_rank_is_named_with_the_time_of_its_reading() -> None:
    series = without(a_killed_worker(), Metric.LAST_FAILURE, Metric.LAST_FAILED_RANK)
    assert a_report(series).story[0] == "A worker of digits-worker-1 was killed at 21.0 s."


def test_a_reading_between_the_generation_and_its_size_hides_no_lost_rank() -> None:
    hidden = (Metric.WORLD_SIZE, "digits-worker-0")
    series = [item for item in a_killed_worker() if (item.name, item.labels[POD]) != hidden]
    late = [4.0] * 22 + [2.0] * 9 + [4.0] * 29
    series.append(Series(Metric.WORLD_SIZE, times(60), late, {POD: "digits-worker-0"}))
    assert a_report(series).story[1].startswith("The other 2 ranks trained on")


def test_a_failure_that_no_pod_has_counted_is_told_as_a_restart() -> None:
    restarts = [0.0] * 21 + [1.0] * 39
    series = without(a_killed_worker(), Metric.FAILURES)
    series.append(Series(Metric.RESTARTS, times(60), restarts, {"cause": "failure", POD: "digits-worker-0"}))
    assert a_report(series).story[0] == "The worker group restarted at 21.0 s (cause: failure)."


def test_failures_at_one_moment_are_one_and_later_ones_are_counted() -> None:
    kills = [0.0] * 21 + [2.0] * 29 + [3.0] * 10
    whose = {"reason": "sigkill", POD: "digits-worker-1"}
    series = [*without(a_killed_worker(), Metric.FAILURES), Series(Metric.FAILURES, times(60), kills, whose)]
    sentence = "Workers failed 2 times. Most recently a worker of digits-worker-1 was killed at 50.0 s."
    assert a_report(series).story[0] == sentence


_SINCE = "All 4 ranks have trained without a restart since the job was resumed."


@pytest.mark.parametrize(
    ("sizes", "story"),
    [
        ([4, 4, 4, 4, 4, 4], "All 4 ranks have trained without a restart so far."),
        ([1, 1, 1, 1, 1, 1], "The rank has trained without a restart so far."),
        ([2, 2, 2, 4, 4, 4], "The worker group grew from 2 to 4 ranks at 3.0 s."),
        ([2, 1, 2, 4, 8, 8], "The worker group was resized 4 times: from 2 to 1, 2, 4 and 8 ranks."),
    ],
    ids=str,
)
def test_a_job_without_failures_tells_of_its_size(sizes: list[float], story: str) -> None:
    assert a_report([Series(Metric.WORLD_SIZE, times(6), sizes, {POD: "a"})]).story == (story,)


def test_a_run_without_an_event_ended_as_it_began() -> None:
    assert a_report(a_job(), summary=DONE).story == ("All 4 ranks trained from start to end without a restart.",)


def test_what_happened_to_earlier_pods_is_told() -> None:
    report = a_report([Series(Metric.WORLD_SIZE, times(6), [4] * 6, {POD: "a"})])

    def story(restarts: int, *, was_suspended: bool) -> tuple[str, ...]:
        state = replace(report.state, restarts={"failure": restarts}, was_suspended=was_suspended)
        return summarize_run(state, report.measured, None)

    before = "The worker group restarted 2 times before the job was resumed."
    assert story(2, was_suspended=True) == (before, _SINCE)
    assert story(0, was_suspended=True) == (_SINCE,)
    assert story(1, was_suspended=False) == ("The worker group restarted 1 time.",)


def test_a_failed_job_names_the_rank_that_ended_it() -> None:
    assert a_report([], error="disk full").story == ("Rank 1 on digits-worker-1 ended the job at 9.0 s.",)
    story = a_report(a_killed_worker(), error="disk full").story
    assert len(story) == MOST_SENTENCES
    assert story[-1] == "Rank 1 on digits-worker-1 ended the job at 9.0 s."


def test_a_job_of_which_nothing_is_known_has_no_story() -> None:
    assert a_report([]).story == ()
    assert '<p class="story">' not in render_html(a_report([]))


def test_tiles_show_accuracy_and_samples_only_where_a_run_has_told_them() -> None:
    report = DONE | {"metrics": {"accuracy": 0.975, "loss": 0.08}, "samples_lost": 0, "samples_repeated": 3}
    text = render_html(a_report(a_killed_worker(), summary=report))
    tiles = re.findall(
        r'<span class="name">(.*?)</span><span class="value">(.*?)</span><span class="more">(.*?)</span>', text
    )
    assert ("Accuracy", "97.5%", "on the test samples") in tiles
    assert ("Samples lost", "0", "3 repeated") in tiles
    names = re.findall(r'<span class="name">(.*?)</span>', render_html(a_report(a_job())))
    assert "Restarts" in names
    assert {"Accuracy", "Samples lost"}.isdisjoint(names)


@pytest.mark.parametrize("lost", ["many", -1, None, True, float("inf"), [1]], ids=str)
def test_a_summary_of_any_program_breaks_no_tile(lost: object) -> None:
    report = a_report([], summary={"samples_lost": lost, "metrics": lost})
    assert (report.samples, report.evaluation_metrics) == ({}, {})
    render_html(report)


def test_events_close_to_each_other_share_a_mark_that_is_labelled_with_the_worst() -> None:
    changes = [
        Change(START + 20, Kind.RESTART, "restart: failure", "restart"),
        Change(START + 20, Kind.SCALE, "4 to 2 ranks", "2 ranks"),
        Change(START + 20.4, Kind.FAILURE, "rank 3 was killed", "rank 3 killed"),
        Change(START + 70, Kind.SCALE, "2 to 4 ranks", "4 ranks"),
    ]
    first, second = mark_events(changes, Timeline(START, 1.0, 100))
    assert (first.kind, first.label, first.place) == (Kind.FAILURE, "rank 3 killed", 0.2)
    assert first.text == "Rank 3 was killed; 4 to 2 ranks; restart: failure"
    assert (second.kind, second.label, second.is_left) == (Kind.SCALE, "4 ranks", False)


def test_a_label_without_room_moves_to_the_left_or_is_left_out() -> None:
    moments = (3.0, 5.0, 7.0, 98.0)
    changes = [Change(START + at, Kind.SCALE, "grew", "4 ranks") for at in moments]
    marks = mark_events(changes, Timeline(START, 1.0, 100))
    assert [mark.label for mark in marks] == ["", "", "4 ranks", "4 ranks"]
    assert [mark.is_left for mark in marks] == [False, False, False, True]


def test_a_failure_without_room_stands_on_a_line_above() -> None:
    changes = [
        Change(START + 9, Kind.SCALE, "2 to 4 ranks", "4 ranks"),
        Change(START + 23, Kind.FAILURE, "rank 3 was killed", "rank 3 killed"),
        Change(START + 36, Kind.SCALE, "2 to 4 ranks", "4 ranks"),
    ]
    marks = mark_events(changes, Timeline(START, 1.0, 100))
    assert [mark.label for mark in marks] == ["4 ranks", "rank 3 killed", "4 ranks"]
    assert [mark.is_above for mark in marks] == [False, True, False]


def test_a_group_that_grew_before_the_first_reading_was_resized_and_did_not_restart() -> None:
    report = a_report(a_job(), summary=DONE | {"restarts": {"resize": 1}})
    text = render_html(report)
    assert report.story == ("The worker group was resized 1 time, and did not restart.",)
    tile = r'<span class="name">Restarts</span><span class="value">0</span><span class="more">1 resize</span>'
    assert re.search(tile, text)
    lines = header(report.state, report.made, Style()).splitlines()
    assert "Restarts:   0, 1 resize" in lines
    assert job_table([report.state], report.made).render(Style()).split()[-4] == "0"


def test_the_duration_of_a_report_is_that_of_status_and_list() -> None:
    report = a_report(a_job(), summary=DONE)
    late = replace(report, state=replace(report.state, started=START + 20, finished=START + 75))
    tile = r'<span class="name">Duration</span><span class="value">(.*?)</span>'
    assert re.findall(tile, render_html(late)) == ["55 s"]
    assert "ended after 55s" in header(late.state, late.made, Style())
