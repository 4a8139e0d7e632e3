"""Every alert fires for what it is there for, and stays silent for what resembles it, by promtool's own clock."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.render.rule_case import JOB, RUNNING, STEPPED, Case
from tests.render.rule_cases import CASES
from tests.support.helm import Helm, Object
from tests.support.rule_files import alone, groups, promtool, rules, written


@pytest.fixture(scope="module")
def delivered(helm: Helm, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rules of the chart at its defaults, as a file."""
    return written(tmp_path_factory.mktemp("rules"), "rules.json", {"groups": groups(helm)})


def alerts(path: Path) -> dict[str, Object]:
    return {rule["alert"]: rule for rule in rules(json.loads(path.read_text())["groups"]) if "alert" in rule}


def simulated(delivered: Path, directory: Path, *tests: dict[str, Any]) -> str:
    """Return the errors of promtool for these tests; empty if they pass."""
    report = [{"interval": "1m", **test} for test in tests]
    content = {"rule_files": [str(delivered)], "evaluation_interval": "1m", "tests": report}
    done = promtool("test", "rules", written(directory, "test.json", content))
    return "" if done.code == 0 else done.out + done.err


def inputs(series: dict[str, str]) -> list[dict[str, str]]:
    return [{"series": name, "values": values} for name, values in series.items()]


def test_promtool_finds_nothing_to_say_about_the_rules(delivered: Path) -> None:
    done = promtool("check", "rules", delivered)
    assert done.code == 0, done.out + done.err
    assert "FAILED" not in done.out + done.err


@pytest.mark.parametrize("alert", sorted({case.alert for case in CASES}))
def test_an_alert_fires_when_it_should_whatever_a_job_of_that_name_does_in_another_namespace(
    delivered: Path, tmp_path: Path, alert: str
) -> None:
    severity = alerts(delivered)[alert]["labels"]["severity"]
    rule = written(tmp_path, "rules.json", {"groups": alone(json.loads(delivered.read_text())["groups"], alert)})
    cases = [case for case in CASES if case.alert == alert]
    opposite = {bool(case.fires): case.series for case in cases}
    tests = [_as_test(case, severity, beside=opposite[not case.fires]) for case in cases]
    assert simulated(rule, tmp_path, *tests) == ""


def _as_test(case: Case, severity: str, beside: Mapping[str, str]) -> dict[str, Any]:
    """Return a case as a test of promtool, with the series of another one in another namespace."""
    requests = f'ALERTS{{alertname="{case.alert}",alertstate="firing",namespace="{JOB["namespace"]}"}}'
    here = re.compile(rf'\bnamespace="{JOB["namespace"]}"')
    others = {here.sub('namespace="speech"', name): values for name, values in beside.items()}
    own = {"alertname": case.alert, "alertstate": "firing", "severity": severity}
    job = JOB if case.belongs_to_job else {}
    samples = [{"labels": _series("ALERTS", own | job | labels), "value": 1} for labels in case.fires]
    test = {"expr": requests, "eval_time": case.at, "exp_samples": samples}
    return {"name": str(case), "input_series": inputs(others | case.series), "promql_expr_test": [test]}


def _series(metric: str, labels: dict[str, str]) -> str:
    return metric + "{" + ",".join(f'{name}="{value}"' for name, value in labels.items()) + "}"


def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_is_silent(delivered: Path) -> None:
    names = set(alerts(delivered))
    assert {case.alert for case in CASES if case.fires} == names
    assert {case.alert for case in CASES if not case.fires} == names


def test_an_alert_says_what_where_and_for_how_long(delivered: Path, tmp_path: Path) -> None:
    series = {STEPPED: "0x30", RUNNING: "1x30"}
    report = {
        "summary": "No rank of a running job steps.",
        "description": "Job digits in namespace training runs and has done no step for 14m 0s.",
        "runbook_url": "docs/runbooks/DdpTrainingStalled.md",
    }
    expected = {"exp_labels": {**JOB, "severity": "critical"}, "exp_annotations": report}
    test = {"alertname": "DdpTrainingStalled", "eval_time": "14m", "exp_alerts": [expected]}
    assert simulated(delivered, tmp_path, {"input_series": inputs(series), "alert_rule_test": [test]}) == ""


def test_shorter_times_make_an_alert_fire_earlier(helm: Helm, tmp_path: Path) -> None:
    settings = {"for": "1m", "threshold": 120}
    path = written(tmp_path, "rules.json", {"groups": groups(helm, {"alerts": {"DdpTrainingStalled": settings}})})
    [case] = [case for case in CASES if case.alert == "DdpTrainingStalled" and case.fires]
    requests = 'count(ALERTS{alertname="DdpTrainingStalled",alertstate="firing"})'
    test = {"expr": requests, "eval_time": "4m", "exp_samples": [{"labels": "{}", "value": 1}]}
    assert simulated(path, tmp_path, {"input_series": inputs(case.series), "promql_expr_test": [test]}) == ""
