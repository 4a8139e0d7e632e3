"""A dashboard as Grafana's classic JSON, which every Grafana from 10.3 on reads, and the newer ones take up as theirs.

Nothing in it names a place: the data source is a variable, there is no ``id``, and ``uid`` makes links between
dashboards hold wherever they are imported.
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable, Iterator
from typing import Final

from tools.dashboards.panel import Dashboard, Json, Panel, Query, Row

SCHEMA_VERSION: Final = 39
"""Grafana 10.3's; later ones migrate it when they open it."""
SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
TAG: Final = "ddp"
COLUMNS: Final = 24


def text(dashboard: Dashboard) -> str:
    """The file."""
    return json.dumps(as_json(dashboard), indent=1, ensure_ascii=False) + "\n"


def as_json(dashboard: Dashboard) -> Json:
    """What Grafana imports."""
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
        "links": [_to_the_others()],
        "templating": {"list": [_datasource(), *dashboard.variables]},
        "annotations": {"list": list(dashboard.annotations)},
        "panels": list(_laid_out(dashboard.rows)),
    }


def chosen(name: str, label: str, asked: str) -> Json:
    """A variable whose values Prometheus knows: ``asked`` is ``label_values(METRIC, LABEL)``."""
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "query": {"query": asked, "refId": "A", "qryType": 1},
        "definition": asked,
        "refresh": 2,
        "sort": 1,
        "multi": False,
        "includeAll": False,
        "hide": 0,
    }


def chosen_many(name: str, label: str, asked: str) -> Json:
    """A variable of which several values, or all, can be chosen."""
    everything = {"text": "All", "value": "$__all"}
    return chosen(name, label, asked) | {"multi": True, "includeAll": True, "allValue": ".*", "current": everything}


def typed(name: str, label: str, default: str, *, hidden: bool = False) -> Json:
    """A variable that people write into, or that only links carry on."""
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


def marked(name: str, query: Query, *, colour: str, title: str, told: str, shown: bool = True) -> Json:
    """Marks on all graphs at the moments, or over the time, for which the query has a value."""
    return {
        "name": name,
        "datasource": SOURCE,
        "enable": shown,
        "hide": False,
        "iconColor": colour,
        "expr": query.promql,
        "target": {"refId": "Anno", "expr": query.promql, "interval": "", "legendFormat": ""},
        "titleFormat": title,
        "textFormat": told,
        "useValueForTime": False,
    }


def link(title: str, uid: str, **variables: str) -> Json:
    """From a row or a line to another dashboard, for the same time and data source."""
    query = "&".join(f"var-{name}={value}" for name, value in variables.items())
    return {"title": title, "url": f"/d/{uid}?{query}&${{datasource:queryparam}}&${{__url_time_range}}"}


def _to_the_others() -> Json:
    """Buttons to the other dashboards, which keep the job and the time."""
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


def _laid_out(rows: Iterable[Row]) -> Iterator[Json]:
    """Rows from the top down, their panels from the left to the right, each with an id of its own."""
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
