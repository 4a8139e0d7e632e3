"""Every query of the dashboards, answered by a real Prometheus that has seen what the dashboards are there to show."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from ddp_report.prometheus import TimeRange, query_series
from ddp_trainer.common.metric_names import Metric
from tests.render import dashboard_history as history
from tests.support import prometheus_history
from tests.support.dashboards import DASHBOARDS, RANGE_SECONDS, Question, filled, panels, questions
from tests.support.prometheus_history import Found, Prometheus, remembering
from tests.support.rule_files import records

CHOSEN = {"namespace": history.GPT.namespace, "ddp_job": history.GPT.name, "datasource": "prometheus"}
CHOSEN |= {"rank": ".*", "namespaces": ".*"}
QUESTIONS = list(questions())


@pytest.fixture(scope="module")
def remembered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """One that has seen both jobs."""
    end = int(time.time()) // prometheus_history.STEP_SECONDS * prometheus_history.STEP_SECONDS
    with remembering(tmp_path_factory.mktemp("history"), history.lines(end), records(), end) as found:
        yield found


def answer(remembered: Prometheus, question: Question, **choices: str) -> list[Found]:
    expression = filled(question.expr, CHOSEN | choices)
    return remembered.now(expression) if question.now else remembered.over(expression, RANGE_SECONDS)


def number(remembered: Prometheus, asker: str) -> float:
    """Return the value that a panel of one number shows."""
    [found] = shown(remembered, asker)
    return found.values[-1]


def shown(remembered: Prometheus, asker: str) -> Sequence[Found]:
    [question] = [item for item in QUESTIONS if str(item) == asker]
    return answer(remembered, question)


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_a_query_is_answered(remembered: Prometheus, question: Question) -> None:
    found = answer(remembered, question)
    assert found, filled(question.expr, CHOSEN)
    named = set(re.findall(r"\{\{(\w+)\}\}", question.legend))
    assert all(named <= item.labels.keys() for item in found), found[0].labels


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_a_query_is_about_nothing_but_what_is_chosen(remembered: Prometheus, question: Question) -> None:
    assert answer(remembered, question, namespace="elsewhere", namespaces="elsewhere") == []
    if question.dashboard != "fleet":
        assert answer(remembered, question, ddp_job="another") == []


@pytest.mark.parametrize(
    ("name", "found"),
    [("namespace", ["training", "vision"]), ("ddp_job", ["gpt"]), ("namespaces", ["training", "vision"])],
)
def test_what_can_be_chosen_is_what_is_there(remembered: Prometheus, name: str, found: list[str]) -> None:
    for dashboard in DASHBOARDS.values():
        for variable in dashboard["templating"]["list"]:
            if variable["name"] == name and variable["type"] == "query":
                requests = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"]["query"])
                assert requests, variable
                assert remembered.values_of(requests[2], filled(requests[1], CHOSEN)) == found


@pytest.mark.parametrize("name", DASHBOARDS)
def test_a_column_of_a_table_has_something_in_it(remembered: Prometheus, name: str) -> None:
    for panel in panels(DASHBOARDS[name]):
        if panel["type"] == "table":
            assert set(columns(panel)) <= set(cells(remembered, panel)), panel["title"]


def columns(panel: dict[str, Any]) -> list[str]:
    [chosen] = [item for item in panel["transformations"] if item["id"] == "filterFieldsByName"]
    names: list[str] = chosen["options"]["include"]["names"]
    return names


def cells(remembered: Prometheus, panel: dict[str, Any]) -> Iterator[str]:
    """The columns that Grafana has before it chooses among them."""
    for target in panel["targets"]:
        for found in remembered.now(filled(target["expr"], CHOSEN)):
            yield from (name for name, value in found.labels.items() if value)
            yield f"Value #{target['refId']}" if len(panel["targets"]) > 1 else "Value"


def test_the_job_is_seen_to_train_and_to_what_end(remembered: Prometheus) -> None:
    [state] = shown(remembered, "job/State/A")
    assert state.labels == {"state": "running"}
    assert number(remembered, "job/Time since the last step/A") == 0
    step = (history.SECONDS - history.OUTAGE_SECONDS) * history.STEPS_A_SECOND - history.LOST_STEPS
    assert number(remembered, "job/Progress/A") == pytest.approx(step / history.PLANNED)
    left = (history.PLANNED - step) / history.STEPS_A_SECOND
    assert number(remembered, "job/Time left/A") == pytest.approx(left, rel=0.02)
    speed = history.STEPS_A_SECOND * history.SAMPLES_OF_A_STEP * history.PODS * history.RANKS_OF_EACH
    assert number(remembered, "job/Samples per second/A") == pytest.approx(speed, rel=0.02)
    assert number(remembered, "job/Hardware utilization/A") == pytest.approx(history.MFU, rel=0.02)
    hfu = number(remembered, "job/Hardware utilization/B")
    assert hfu == pytest.approx(history.MFU * (1 + history.RECOMPUTED), rel=0.02)
    assert 0.4 < number(remembered, "job/Step time/A") <= 0.63, "the bucket of 1 step in 0.5 s"


def test_the_bubble_of_a_pipeline_is_seen_as_a_share_of_the_steps(remembered: Prometheus) -> None:
    found = shown(remembered, "job/Waiting within a split model/A")
    shares = {item.labels["operation"]: item.values[-1] for item in found}
    assert shares["stage"] == pytest.approx(history.BUBBLE, rel=0.02)
    assert shares["all_gather"] == pytest.approx(0.05, rel=0.02)


def test_what_a_restart_cost_is_seen(remembered: Prometheus) -> None:
    training = RANGE_SECONDS - history.OUTAGE_SECONDS
    productive = (0.9 * training - history.LOST_SECONDS) / RANGE_SECONDS
    assert number(remembered, "job/Goodput/A") == pytest.approx(productive, rel=0.01)
    assert number(remembered, "job/Lost steps/A") == history.LOST_STEPS
    wasted = {found.labels["state"]: found.values[-1] for found in shown(remembered, "job/Unproductive time/A")}
    assert wasted["restart"] == pytest.approx(history.OUTAGE_SECONDS / 2)
    assert "productive" not in wasted
    assert {found.labels["cause"] for found in shown(remembered, "job/Restarts by cause/A")} == {"failure"}
    assert {found.labels["reason"] for found in shown(remembered, "job/Failures by reason/A")} == {"sigkill"}


def test_the_slow_rank_comes_first(remembered: Prometheus) -> None:
    slow = str(history.SLOW_RANK)
    worst = shown(remembered, "job/Slowest ranks/A")[0]
    assert worst.labels["rank"] == slow
    assert worst.values[-1] == pytest.approx(3)
    table = {found.labels["rank"]: found for found in shown(remembered, "ranks/Stragglers/A")}
    assert table[slow].values[-1] == max(found.values[-1] for found in table.values())
    assert table[slow].labels["gpu_uuid"] == f"GPU-training-{slow}"
    assert table[slow].labels["node"] == "node-1"
    worst = shown(remembered, "ranks/Phases of a step, against the median of all ranks/A")[0]
    assert (worst.labels["rank"], worst.labels["phase"]) == (slow, "forward")
    assert worst.values[-1] == pytest.approx(3)


def test_who_is_behind_in_a_collective_and_the_heat_of_a_gpu_are_seen_by_rank(remembered: Prometheus) -> None:
    for panel, values in (("Position in collectives", (0, 0, 1, 0)), ("Temperature", (60, 61, 62, 63))):
        report = {found.labels["rank"]: found.values[-1] for found in shown(remembered, f"ranks/{panel}/A")}
        assert report == {str(rank): value for rank, value in enumerate(values)}


def test_a_choice_of_ranks_leaves_the_median_of_all(remembered: Prometheus) -> None:
    chosen = {"rank": str(history.SLOW_RANK)}
    for title in ("Phases of a step, against the median of all ranks", "Stragglers"):
        [question] = [item for item in QUESTIONS if str(item) == f"ranks/{title}/A"]
        found = answer(remembered, question, **chosen)
        assert {item.labels["rank"] for item in found} == {chosen["rank"]}
        assert max(item.values[-1] for item in found) == pytest.approx(3)


def test_a_report_of_a_job_knows_nothing_of_its_namesake_in_another_namespace(remembered: Prometheus) -> None:
    span, lost = TimeRange(start=remembered.end - RANGE_SECONDS, end=remembered.end), {}
    for course in (history.GPT, history.NAMESAKE):
        report = query_series(f"http://{remembered.address}", course.name, course.namespace, span, {})
        [series] = [item for item in report if item.name == Metric.LOST_PROGRESS]
        lost[course.namespace] = series.values[-1]
    assert lost == {history.GPT.namespace: history.LOST_SECONDS, history.NAMESAKE.namespace: 0}
