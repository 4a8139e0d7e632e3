"""The rules as the chart delivers them: values by alert, records by convention, and a runbook for each alert."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from kubectl_ddp.cli.group import root
from tests.support.helm import PLATFORM, ROOT, Helm
from tests.support.rule_files import SERVES, groups, rules

RUNBOOKS = ROOT / "docs" / "runbooks"
SETTINGS = yaml.safe_load((PLATFORM / "values.yaml").read_text())["monitoring"]["rules"]["alerts"]
SCHEMA = json.loads((PLATFORM / "values.schema.json").read_text())
COMMAND = re.compile(r"^kubectl ddp .*$", re.MULTILINE)
ALERTS = sorted(SETTINGS)


def test_every_alert_has_its_values_and_no_other_has(helm: Helm) -> None:
    delivered = {rule["alert"] for rule in rules(groups(helm)) if "alert" in rule}
    assert delivered == set(SETTINGS)
    taken = SCHEMA["properties"]["monitoring"]["properties"]["rules"]["properties"]["alerts"]["propertyNames"]["enum"]
    assert sorted(taken) == ALERTS


@pytest.mark.parametrize(
    ("alerts", "sentence"),
    [
        ({"DdpLossNonFinite": {"threshold": 3}}, "alerts.DdpLossNonFinite: has no threshold; leave it out"),
        ({"DdpStepsLost": {"threshold": None}}, "monitoring.rules.alerts.DdpStepsLost: needs a threshold"),
        ({"DdpRankBehindCollective": {"threshold": 90.5}}, "is in whole seconds, 1 to 999999, and 90.5 is not"),
        ({"DdpStepLost": {"for": "1m"}}, "DdpStepLost"),
        ({"DdpStepsLost": {"for": "soon"}}, "soon"),
        ({"DdpStepsLost": {"severity": "fatal"}}, "severity"),
    ],
)
def test_a_wrong_value_is_refused_by_name(helm: Helm, alerts: dict[str, object], sentence: str) -> None:
    assert sentence in helm.error_response(PLATFORM, {"monitoring": {"rules": {"alerts": alerts}}}, serves=SERVES)


def test_every_alert_has_a_runbook_and_the_index_names_it() -> None:
    assert {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"} == set(ALERTS)
    index = (RUNBOOKS / "README.md").read_text()
    assert sorted(re.findall(r"\]\((\w+)\.md\)", index)) == ALERTS


@pytest.mark.parametrize("path", sorted(RUNBOOKS.glob("*.md")), ids=lambda path: path.stem)
def test_a_command_of_a_runbook_exists(path: Path) -> None:
    for line in COMMAND.findall(path.read_text()):
        words = shlex.split(line, comments=True)[2:]
        command = root().get_command(None, words[0])  # type: ignore[arg-type]
        assert command is not None, line
        words = words[1 : words.index("--")] if "--" in words else words[1:]
        known = {name for param in command.params if isinstance(param, click.Option) for name in param.opts}
        requests = {word.split("=")[0] for word in words if word.startswith("-")}
        assert requests <= known, line
