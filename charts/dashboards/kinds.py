"""The kinds of panels that the dashboards use, each with the look that all of its kind share.

Colours are named as Grafana's palette names them, so that each theme, light or dark, takes its own shade.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from charts.dashboards.panel import Json, Panel, Query

NEUTRAL: Final = {None: "text"}
"""No colour says that a number is good or bad."""
Steps = Mapping[float | None, str]
"""From which value on which colour; ``None`` is from below all others."""


def stat(
    title: str, question: str, *queries: Query, unit: str, steps: Steps = NEUTRAL, width: int = 4, **how: Any
) -> Panel:
    """A number to be read from across the room, coloured where it should not be so."""
    return Panel(
        kind="stat",
        title=title,
        question=question,
        queries=queries,
        width=width,
        height=4,
        defaults=_defaults(unit, steps, how),
        overrides=_overrides(how),
        options={
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value" if steps != NEUTRAL else "none",
            "graphMode": "none",
            "textMode": how.get("text", "auto"),
            "justifyMode": "auto",
            "percentChangeColorMode": "standard",
            "showPercentChange": False,
            "orientation": "auto",
            "wideLayout": True,
        },
    )


def lines(title: str, question: str, *queries: Query, unit: str, width: int = 12, **how: Any) -> Panel:
    """Numbers over time."""
    stacked = how.get("stacked", "none")
    custom = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 70 if stacked != "none" else 0,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": stacked, "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if "steps" in how else "off"},
        "axisSoftMin": 0,
    }
    if "from_data" in how:
        del custom["axisSoftMin"]
    return _over_time(title, question, queries, unit, width, custom, how)


def bars(title: str, question: str, *queries: Query, unit: str, width: int = 12, **how: Any) -> Panel:
    """What happened in each interval, stacked."""
    custom = {
        "drawStyle": "bars",
        "lineWidth": 1,
        "fillOpacity": 80,
        "showPoints": "never",
        "stacking": {"mode": "normal", "group": "A"},
        "axisSoftMin": 0,
    }
    return _over_time(title, question, queries, unit, width, custom, how)


def shares(title: str, question: str, *queries: Query, unit: str, width: int = 12, **how: Any) -> Panel:
    """One bar for each thing at the end of the range, the longest first."""
    return Panel(
        kind="bargauge",
        title=title,
        question=question,
        queries=queries,
        width=width,
        height=8,
        defaults=_defaults(unit, how.get("steps", {None: "blue"}), how) | {"min": 0},
        overrides=_overrides(how),
        options={
            "displayMode": "basic",
            "orientation": "horizontal",
            "valueMode": "color",
            "namePlacement": "left",
            "showUnfilled": True,
            "sizing": "auto",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
            "minVizHeight": 16,
            "minVizWidth": 8,
            "maxVizHeight": 24,
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
    )


def timeline(title: str, question: str, *queries: Query, colours: Mapping[str, str], width: int = 12) -> Panel:
    """When which of several states held; each query is 1 while it does."""
    shown = {"0": {"text": " ", "color": "transparent", "index": 0}, "1": {"text": " ", "index": 1}}
    return Panel(
        kind="state-timeline",
        title=title,
        question=question,
        queries=queries,
        width=width,
        height=8,
        defaults={
            "unit": "none",
            "mappings": [{"type": "value", "options": shown}],
            "custom": {"lineWidth": 0, "fillOpacity": 80},
            "thresholds": _thresholds({None: "transparent", 1: "blue"}),
            "color": {"mode": "thresholds"},
        },
        overrides=tuple(
            _override(name, {"thresholds": _thresholds({None: "transparent", 1: colour})})
            for name, colour in colours.items()
        ),
        options={
            "showValue": "never",
            "rowHeight": 0.8,
            "mergeValues": True,
            "alignValue": "left",
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        },
    )


def cells(title: str, question: str, *queries: Query, unit: str, steps: Steps, width: int = 24, **how: Any) -> Panel:
    """A cell for each thing and moment, coloured by its number."""
    return Panel(
        kind="status-history",
        title=title,
        question=question,
        queries=queries,
        width=width,
        height=how.get("height", 10),
        defaults=_defaults(unit, steps, how) | {"custom": {"lineWidth": 0, "fillOpacity": 80}},
        options={
            "showValue": "never",
            "rowHeight": 0.9,
            "colWidth": 0.95,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        },
    )


def table(title: str, question: str, *queries: Query, columns: Mapping[str, str], width: int = 24, **how: Any) -> Panel:
    """A row for each thing. ``columns`` names what is shown, in this order, each with its heading: a label, or for the
    value of a query ``Value #A`` by its letter.
    """
    order = {name: place for place, name in enumerate(columns)}
    return Panel(
        kind="table",
        title=title,
        question=question,
        queries=queries,
        width=width,
        height=how.get("height", 10),
        defaults=_defaults("none", NEUTRAL, how)
        | {"custom": {"align": "auto", "cellOptions": {"type": "auto"}, "inspect": False, "filterable": True}},
        overrides=_overrides(how),
        options={
            "showHeader": True,
            "frameIndex": 0,
            "cellHeight": "sm",
            "sortBy": [{"displayName": heading, "desc": desc} for heading, desc in how.get("sort", {}).items()],
        },
        transformations=(
            {"id": "merge", "options": {}},
            {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
            {"id": "organize", "options": {"indexByName": order, "renameByName": dict(columns), "excludeByName": {}}},
        ),
    )


def column(heading: str, *, unit: str = "", steps: Steps | None = None, links: Iterable[Json] = ()) -> Json:
    """How one column of a table, or one line of a graph, is shown; ``steps`` colour its text."""
    properties: Json = {}
    if unit:
        properties["unit"] = unit
    if steps is not None:
        properties |= {"thresholds": _thresholds(steps), "custom.cellOptions": {"type": "color-text"}}
        properties |= {"color": {"mode": "thresholds"}}
    if links:
        properties["links"] = list(links)
    return _override(heading, properties)


def dashed(name: str) -> Json:
    """Draw a line as what another is compared with."""
    return _override(
        name,
        {
            "custom.lineStyle": {"fill": "dash", "dash": [8, 6]},
            "custom.fillOpacity": 0,
            "color": {"mode": "fixed", "fixedColor": "text"},
        },
    )


def on_the_right(name: str, unit: str) -> Json:
    """Give a line of another unit an axis of its own."""
    return _override(name, {"custom.axisPlacement": "right", "unit": unit})


def _over_time(
    title: str,
    question: str,
    queries: tuple[Query, ...],
    unit: str,
    width: int,
    custom: Json,
    how: Mapping[str, Any],
) -> Panel:
    shape = {"custom": custom, "color": {"mode": "palette-classic-by-name"}}
    return Panel(
        kind="timeseries",
        title=title,
        question=question,
        queries=queries,
        width=width,
        height=8,
        defaults=_defaults(unit, how.get("steps", NEUTRAL), how) | shape,
        overrides=_overrides(how),
        options={
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


def _defaults(unit: str, steps: Steps, how: Mapping[str, Any]) -> Json:
    found = {"unit": unit, "thresholds": _thresholds(steps), "color": {"mode": "thresholds"}, "mappings": []}
    return found | {name: how[name] for name in ("min", "max", "decimals", "noValue", "links") if name in how}


def _thresholds(steps: Steps) -> Json:
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps.items()]}


def _overrides(how: Mapping[str, Any]) -> tuple[Json, ...]:
    """Those that are given, and one for each line that always has the same colour."""
    fixed = (
        _override(name, {"color": {"mode": "fixed", "fixedColor": colour}})
        for name, colour in how.get("colours", {}).items()
    )
    return (*fixed, *how.get("overrides", ()))


def _override(name: str, properties: Mapping[str, Any]) -> Json:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }
