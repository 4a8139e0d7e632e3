"""Dashboards in Grafana's classic JSON, which Grafana reads from 10.3 on.

The files import into any Grafana: the data source is a variable, ``id`` is left out, and links between dashboards use
``uid``.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Iterator
from typing import Final

from tools.dashboards.panel import Dashboard, Json, Panel, Query, Row

SCHEMA_VERSION: Final = 39
"""Schema version of Grafana 10.3. Later versions migrate it."""
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
TAG: Final = "ddp"
COLUMNS: Final = 24


def text(dashboard: Dashboard) -> str:
    """Return the text of the file."""
    return json.dumps(as_json(dashboard), indent=1, ensure_ascii=False) + "\n"


def as_json(dashboard: Dashboard) -> Json:
    """Return the JSON object that Grafana imports."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": [TAG],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "timezone": "",
        "refresh": "30s",
        "time": {"from": dashboard.since, "to": "now"},
        "timepicker": {},
        "fiscalYearStartMonth": 0,
        "weekStart": "",
        "links": [_dashboard_links()],
        "templating": {"list": [_datasource(), *dashboard.variables]},
        "annotations": {"list": list(dashboard.annotations)},
        "panels": list(_place_panels(dashboard.rows)),
    }


def query_variable(name: str, label: str, query: str) -> Json:
    """Return a variable with values from Prometheus. ``query`` is ``label_values(METRIC, LABEL)``."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": {"query": query, "refId": "A", "qryType": 1},
        "definition": query,
        "refresh": 2,
        "sort": 1,
        "multi": False,
        "includeAll": False,
        "hide": 0,
    }


def chosen_many(name: str, label: str, query: str) -> Json:
    """Return a variable with several values, or all."""
    several = {"multi": True, "includeAll": True, "allValue": ".*", "current": {"text": "All", "value": "$__all"}}
    return query_variable(name, label, query) | several


def text_variable(name: str, label: str, default: str, *, hidden: bool = False) -> Json:
    """Return a variable with free text, or one that only links set."""
    current = {"text": default, "value": default}
    return {
        "type": "textbox",
        "name": name,
        "label": label,
        "query": default,
        "current": current,
        "options": [current | {"selected": True}],
        "hide": 2 if hidden else 0,
    }


def query_annotation(name: str, query: Query, *, colour: str, title: str, text: str, shown: bool = True) -> Json:
    """Return an annotation on all graphs, at the times where the query has a value."""
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": shown,
        "hide": False,
        "iconColor": colour,
        "expr": query.promql,
        "target": {"refId": "Anno", "expr": query.promql, "interval": "", "legendFormat": ""},
        "titleFormat": title,
        "textFormat": text,
        "useValueForTime": False,
    }


def data_link(title: str, uid: str, **variables: str) -> Json:
    """Return a link to another dashboard, with the same time range and data source."""
    query = "&".join(f"var-{name}={value}" for name, value in variables.items())
    return {"title": title, "url": f"/d/{uid}?{query}&${{datasource:queryparam}}&${{__url_time_range}}"}


def _dashboard_links() -> Json:
    """Return buttons to the other dashboards, which keep the job and the time range."""
    return {
        "type": "dashboards",
        "title": "",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
        "icon": "external link",
        "tooltip": "",
        "url": "",
    }


def _datasource() -> Json:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "refresh": 1,
        "regex": "",
        "multi": False,
        "includeAll": False,
        "hide": 0,
    }


def _place_panels(rows: Iterable[Row]) -> Iterator[Json]:
    """Return the panels of all rows, top to bottom and left to right, with unique ids."""
    ids = iter(range(1, 1000))
    y = 0
    for row in rows:
        head = {"type": "row", "title": row.title, "collapsed": row.collapsed, "id": next(ids)}
        head["gridPos"] = {"h": 1, "w": COLUMNS, "x": 0, "y": y}
        y += 1
        placed = []
        x = height = 0
        for panel in row.panels:
            if x + panel.width > COLUMNS:
                x, y, height = 0, y + height, 0
            placed.append(_panel(panel, next(ids), x, y))
            x, height = x + panel.width, max(height, panel.height)
        y += height
        yield head | {"panels": placed if row.collapsed else []}
        yield from [] if row.collapsed else placed


def _panel(panel: Panel, number: int, x: int, y: int) -> Json:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.question,
        "datasource": SOURCE,
        "gridPos": {"h": panel.height, "w": panel.width, "x": x, "y": y},
        "fieldConfig": {"defaults": panel.defaults, "overrides": list(panel.overrides)},
        "options": panel.options,
        "targets": [
            _target(query, letter) for query, letter in zip(panel.queries, string.ascii_uppercase, strict=False)
        ],
        "transformations": list(panel.transformations),
    }


def _target(query: Query, letter: str) -> Json:
    return {
        "refId": letter,
        "datasource": SOURCE,
        "expr": query.promql,
        "legendFormat": query.legend or "__auto",
        "editorMode": "code",
        "format": "table" if query.table else "time_series",
        "instant": query.now or query.table,
        "range": not (query.now or query.table),
    }
