"""The dashboards as files: fresh, complete, importable anywhere, and delivered by the chart."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest

from ddp_trainer.metrics.families.family import Kind
from tests.render.dashboard_history import GPUS
from tests.support.dashboards import BUILT_IN, DASHBOARDS, Question, panels, questions
from tests.support.helm import PLATFORM, Helm, Object
from tests.support.rule_files import FAMILY_OF, SERVES, exported, groups, matchers_of, metrics_of, records, rules

OF_OTHERS = {"ALERTS": "Prometheus' own: alerts that fire"} | dict.fromkeys(GPUS, "DCGM's exporter, where there is one")
"""Metrics that are not in our catalogue, each with its source."""
GROWTH = ("rate(", "increase(", "max_over_time(", "min_over_time(", "changes(")
COLOURS = re.compile(r"transparent|text|((super-light|light|semi-dark|dark)-)?(red|orange|yellow|green|blue|purple)")
LARGEST_BYTES = 256 * 1024
"""Limit of the annotation in which `kubectl apply` stores the last object."""
CONDITIONS = {"ddp_worker_group_state", "ddp_job_info", "ddp_rank_up"}
"""Metrics with which alerts find running jobs."""
EVERY_TARGET = {"namespace", "ddp_job", "rank", "pod", "node"}
"""Labels that series have beside those of the catalogue."""
QUESTIONS = list(questions())
NAMED = pytest.mark.parametrize("name", DASHBOARDS)


def nodes(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key of a JSON text with what stands there."""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield str(key), item
        if isinstance(item, dict | list):
            yield from nodes(item)


def test_a_query_reads_what_is_exported_or_recorded(helm: Helm) -> None:
    recorded = {rule["record"] for rule in rules(groups(helm)) if "record" in rule}
    read = set().union(*(metrics_of(item.expr) for item in QUESTIONS))
    assert read - FAMILY_OF.keys() - recorded == set(OF_OTHERS)


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_a_query_asks_for_labels_and_values_that_the_catalogue_has(question: Question) -> None:
    for matcher in matchers_of(question.expr):
        if (family := FAMILY_OF.get(matcher.metric)) is not None and matcher.label not in EVERY_TARGET:
            assert matcher.label in family.labels
            assert not family.values or matcher.values <= set(family.values)


@pytest.mark.parametrize("question", QUESTIONS, ids=str)
def test_a_query_reads_a_counter_by_its_growth(question: Question) -> None:
    for name in metrics_of(question.expr):
        if name in FAMILY_OF and FAMILY_OF[name].kind in {Kind.COUNTER, Kind.SUMMARY, Kind.HISTOGRAM}:
            assert len(re.findall(rf"\b{name}\b", question.expr)) == sum(
                question.expr.count(f"{function}{name}{{") for function in GROWTH
            )


@NAMED
def test_a_dashboard_can_be_imported_anywhere(name: str) -> None:
    dashboard = DASHBOARDS[name]
    assert dashboard["schemaVersion"] >= 39
    assert not dashboard["editable"]
    assert not {"id", "__inputs", "__requires"} & dashboard.keys()
    for key, value in nodes(dashboard):
        if key == "datasource":
            assert value == {"type": "prometheus", "uid": "${datasource}"}
        if key in {"color", "fixedColor", "iconColor"} and isinstance(value, str):
            assert COLOURS.fullmatch(value), f"{value} is not a color of both themes"


@NAMED
def test_panels_have_ids_of_their_own_and_do_not_overlap(name: str) -> None:
    tops = [item for item in DASHBOARDS[name]["panels"] if not item.get("collapsed")]
    ids = [item["id"] for item in (*DASHBOARDS[name]["panels"], *panels(DASHBOARDS[name])) if item["type"] == "row"]
    ids += [item["id"] for item in panels(DASHBOARDS[name])]
    assert len(ids) == len(set(ids))
    for first, second in combinations((item["gridPos"] for item in tops), 2):
        beside = first["x"] + first["w"] <= second["x"] or second["x"] + second["w"] <= first["x"]
        above = first["y"] + first["h"] <= second["y"] or second["y"] + second["h"] <= first["y"]
        assert beside or above, (first, second)
        assert first["x"] + first["w"] <= 24


@NAMED
def test_the_queries_of_a_merged_table_leave_out_the_name_of_the_metric(name: str) -> None:
    """Grafana joins rows that agree on every label, and ``__name__`` is one."""
    for panel in panels(DASHBOARDS[name]):
        for target in panel["targets"] if panel["type"] == "table" else []:
            is_bare = re.fullmatch(r"[\w:]+\{[^}]*\}", target["expr"])
            assert not is_bare, (panel["title"], target["expr"])


@NAMED
def test_every_variable_is_used_and_every_used_one_is_there(name: str) -> None:
    dashboard = DASHBOARDS[name]
    offered = {item["name"] for item in dashboard["templating"]["list"]}
    text = json.dumps({key: value for key, value in dashboard.items() if key != "links"})
    used = {first or second for first, second in re.findall(r"\$(?:\{(\w+)\}|([a-zA-Z_]\w*))", text)} - BUILT_IN.keys()
    assert used <= offered | {"__all", "__url_time_range"}
    kept_for_links = {item["name"] for item in dashboard["templating"]["list"] if item["hide"]}
    assert offered - kept_for_links <= used


@NAMED
def test_a_link_leads_to_a_dashboard_that_takes_what_it_is_given(name: str) -> None:
    offered = {dashboard["uid"]: dashboard["templating"]["list"] for dashboard in DASHBOARDS.values()}
    takes = {uid: {f"var-{item['name']}" for item in variables} for uid, variables in offered.items()}
    for key, url in nodes(DASHBOARDS[name]):
        if key == "url" and url:
            path, given = urlsplit(url).path, dict(parse_qsl(urlsplit(url).query))
            assert set(given) <= takes[path.removeprefix("/d/")], url
            assert "${datasource:queryparam}" in url
            assert "${__url_time_range}" in url


def test_the_chart_delivers_each_as_grafanas_sidecar_finds_it(helm: Helm) -> None:
    found = [item for item in helm.template(PLATFORM) if item["kind"] == "ConfigMap"]
    maps = {item["metadata"]["name"]: item for item in found if "grafana_dashboard" in item["metadata"]["labels"]}
    assert maps.keys() == {f"ddp-dashboard-{name}" for name in DASHBOARDS}
    for name, dashboard in DASHBOARDS.items():
        item = maps[f"ddp-dashboard-{name}"]
        assert item["metadata"]["labels"]["grafana_dashboard"] == "1"
        assert item["metadata"]["annotations"]["grafana_folder"] == "Training"
        assert {key: json.loads(text) for key, text in item["data"].items()} == {f"{name}.json": dashboard}
        assert len(json.dumps(item)) < LARGEST_BYTES, name


@pytest.fixture(scope="module")
def linked(helm: Helm) -> list[Object]:
    """The rules of the chart, whose alerts lead to Grafana."""
    values = {"monitoring": {"dashboards": {"url": "https://grafana.example.com/"}}}
    found = [item for item in helm.template(PLATFORM, values, serves=SERVES) if item["kind"] == "PrometheusRule"]
    return list(rules([group for item in found for group in item["spec"]["groups"]]))


def test_an_alert_leads_to_a_dashboard_that_shows_what_it_is_about(linked: list[Object]) -> None:
    recorded = records()
    for alert in (rule for rule in linked if "alert" in rule):
        url = urlsplit(alert["annotations"]["dashboard_url"])
        assert url.netloc == "grafana.example.com"
        [name] = [name for name, dashboard in DASHBOARDS.items() if url.path == f"/d/{dashboard['uid']}"]
        takes = {f"var-{item['name']}" for item in DASHBOARDS[name]["templating"]["list"]}
        report = dict(parse_qsl(url.query))
        assert report.keys() <= takes
        for label in re.findall(r"\$labels\.(\w+)", " ".join(report.values())):
            assert f"$labels.{label} " in alert["annotations"]["description"], alert["alert"]
        shown = set().union(*(exported(item.expr, recorded) for item in QUESTIONS if item.dashboard == name))
        read = exported(alert["expr"], recorded)
        assert (read - CONDITIONS or read) & shown, alert["alert"]
