"""Every value of ``charts/ddp-platform`` does what it is there for, and no other value is taken."""

from __future__ import annotations

import importlib
import json
import shutil
from pathlib import Path

import pytest
import yaml

from tests.render.platform_values import PROMETHEUS
from tests.support.chart_values import Row, check, key_in_schema, keys_of
from tests.support.helm import PLATFORM, Helm

SCHEMA = json.loads((PLATFORM / "values.schema.json").read_text())
ROWS: list[Row] = [
    row
    for table in sorted(Path(__file__).parent.glob("platform_values*.py"))
    for row in importlib.import_module(f"tests.render.{table.stem}").ROWS
]
"""Rows of every table beside this file."""
READ_BY_NOTHING = {"global"}
RULES = """\
groups:
  - name: sample
    rules:
      - alert: A
        expr: up == 0
        annotations: {summary: "{{ $labels.pod }} is down"}
"""


@pytest.fixture(scope="module")
def chart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The chart with a rule file and a dashboard dropped in."""
    copy = tmp_path_factory.mktemp("chart") / "ddp-platform"
    shutil.copytree(PLATFORM, copy)
    (copy / "files/rules/sample.yaml").write_text(RULES)
    (copy / "files/dashboards/sample.json").write_text('{\n  "title": "{{ job }}"\n}\n')
    return copy


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_value_changes_what_it_is_there_for(helm: Helm, chart: Path, row: Row) -> None:
    check(helm, chart, row)


def test_no_value_is_left_out() -> None:
    mentioned = {key_in_schema(SCHEMA, row.key) for row in ROWS}
    assert keys_of(SCHEMA) - mentioned == READ_BY_NOTHING, "write a row for these in platform_values*.py"


def test_rule_files_and_dashboards_are_delivered_as_they_are(helm: Helm, chart: Path) -> None:
    objects = helm.template(chart, serves=PROMETHEUS)
    [rule] = [item for item in objects if item["metadata"]["name"] == "ddp-sample"]
    assert rule["spec"] == yaml.safe_load(RULES)
    [board] = [item for item in objects if item["metadata"]["name"] == "ddp-dashboard-sample"]
    assert board["data"]["sample.json"] == '{\n  "title": "{{ job }}"\n}\n'
