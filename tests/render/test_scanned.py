"""``make checkov`` scans objects of every template of every chart, including templates added later."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.support.helm import CHARTS, Helm
from tools.scan.objects import EVERYTHING, SERVES

MAKE_NOTHING: Final = {"NOTES.txt", "validate.yaml"}
"""Words for people, and a check."""
SOURCE: Final = re.compile(r"^# Source: [\w-]+/(templates/\S+)$", re.MULTILINE)


def scanned(helm: Helm, chart: Path) -> set[str]:
    """The templates of which the scan sees an object."""
    values = [yaml.safe_load(path.read_text()) for path in chart.glob("ci/*-values.yaml")]
    values += [EVERYTHING] if chart.name == "ddp-platform" else []
    return {path for value in values for path in SOURCE.findall(helm.render(chart, value, serves=SERVES).ok().out)}


@pytest.mark.parametrize(
    "chart", sorted(path.parent for path in CHARTS.glob("*/Chart.yaml")), ids=lambda path: path.name
)
def test_every_template_of_a_chart_is_looked_at(helm: Helm, chart: Path) -> None:
    paths = [path for path in (chart / "templates").rglob("*") if path.is_file() and path.name not in MAKE_NOTHING]
    templates = {str(path.relative_to(chart)) for path in paths if not path.name.startswith("_")}
    assert templates - scanned(helm, chart) == set(), "give tools/scan/objects.py values that make something of these"
