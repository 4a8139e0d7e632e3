"""The dashboards as Grafana exports them for others, with the plugins that they need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from tools.release.project import CHARTS

DASHBOARDS: Final = CHARTS / "ddp-platform" / "files" / "dashboards"
GRAFANA: Final = {"type": "grafana", "id": "grafana", "name": "Grafana", "version": "10.3.0"}
"""The oldest Grafana with the schema of the dashboards."""
INPUT: Final = {
    "name": "DS_PROMETHEUS",
    "label": "Prometheus",
    "description": "",
    "type": "datasource",
    "pluginId": "prometheus",
    "pluginName": "Prometheus",
}
"""Grafana prompts for this input at the import."""


def write(target: Path) -> list[Path]:
    """Write each dashboard into ``target``, importable by ``Dashboards > Import``."""
    written = []
    for path in sorted(DASHBOARDS.glob("*.json")):
        dashboard = shared_form(json.loads(path.read_text(encoding="utf-8")))
        written.append(target / f"dashboard-{path.name}")
        written[-1].write_text(json.dumps(dashboard, indent=1) + "\n", encoding="utf-8")
    return written


def shared_form(dashboard: dict[str, Any]) -> dict[str, Any]:
    """Return a dashboard with the keys of an export. Its Prometheus is an input in place of a variable."""
    text = (
        json.dumps(dashboard).replace("&${datasource:queryparam}", "").replace("${datasource}", f"${{{INPUT['name']}}}")
    )
    shared = json.loads(text)
    shared["templating"]["list"] = [
        variable for variable in shared["templating"]["list"] if variable["type"] != "datasource"
    ]
    kinds = sorted({panel["type"] for panel in _panels(shared["panels"]) if panel["type"] != "row"})
    requires = [GRAFANA, *({"type": "panel", "id": kind, "name": kind, "version": ""} for kind in kinds)]
    requires.append({"type": "datasource", "id": "prometheus", "name": "Prometheus", "version": "1.0.0"})
    return {"__inputs": [INPUT], "__elements": {}, "__requires": requires} | shared | {"id": None}


def _panels(panels: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for panel in panels:
        yield panel
        yield from _panels(panel.get("panels", []))
