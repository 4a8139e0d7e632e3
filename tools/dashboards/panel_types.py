"""Panel types of the dashboards, each with a common look.

Colours have the names of Grafana's palette, so that light and dark themes take their own shades.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, Unpack

from tools.dashboards.panel import Json, Panel, Query

Steps = Mapping[float | None, str]
"""Lower bound → colour. ``None`` is the colour below all others."""
NEUTRAL: Final[Steps] = {None: "text"}
"""A single colour, for numbers that are neither good nor bad."""
ALL_BLUE: Final[Steps] = {None: "blue"}
NEVER: Final[Mapping[str, bool]] = {}
COLUMN_MIN_WIDTH: Final = 100
"""Pixels of a table's column. With Grafana's default of 150, twelve columns do not fit in a window of 1600."""
BAR_NAME_SIZE: Final = 11
"""Pixels. Grafana reserves the width of one name at 12, and cuts others that have as many letters but wider ones."""


class Display(TypedDict, total=False):
    """Display options of numbers, with the names of Grafana, and overrides."""

    min: float
    max: float
    decimals: int
    noValue: str
    """Text that is shown if Prometheus returns nothing."""
    links: Sequence[Json]
    """Links of a number."""
    colours: Mapping[str, str]
    """Fixed colours of lines, by name."""
    overrides: Sequence[Json]


def stat(
    title: str,
    question: str,
    *queries: Query,
    unit: str,
    steps: Steps = NEUTRAL,
    width: int = 4,
    text: str = "auto",
    **shown: Unpack[Display],
) -> Panel:
    """Return a panel with one large number, coloured by thresholds.

    ``text`` is what is shown: its ``value``, its ``name`` or both.
    """
    return Panel(
        kind="stat",
        title=title,
        question=question,
        queries=queries,
        width=width,
        height=4,
        defaults=_defaults(unit, steps, shown),
        overrides=_overrides(shown),
        options={
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
            "colorMode": "value" if steps != NEUTRAL else "none",
            "graphMode": "none",
            "textMode": text,
            "justifyMode": "auto",
            "percentChangeColorMode": "standard",
            "showPercentChange": False,
            "orientation": "auto",
            "wideLayout": True,
        },
    )


def time_series(
    title: str,
    question: str,
    *queries: Query,
    unit: str,
    steps: Steps = NEUTRAL,
    width: int = 12,
    is_stacked: bool = False,
    from_zero: bool = True,
    **shown: Unpack[Display],
) -> Panel:
    """Return a time series panel. ``steps`` are dashed horizontal lines."""
    custom: Json = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 70 if is_stacked else 0,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if is_stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "off" if steps == NEUTRAL else "dashed"},
    }
    custom |= {"axisSoftMin": 0} if from_zero else {}
    defaults = _defaults(unit, steps, shown) | {"custom": custom}
    return _over_time(title, question, queries, width, defaults, _overrides(shown))


def stacked_series(
    title: str, question: str, *queries: Query, unit: str, width: int = 12, **shown: Unpack[Display]
) -> Panel:
    """Return a panel of stacked bars, one per interval."""
    custom: Json = {
        "drawStyle": "bars",
        "lineWidth": 1,
        "fillOpacity": 80,
        "showPoints": "never",
        "stacking": {"mode": "normal", "group": "A"},
        "axisSoftMin": 0,
    }
    defaults = _defaults(unit, NEUTRAL, shown) | {"custom": custom}
    return _over_time(title, question, queries, width, defaults, _overrides(shown))


def bar_gauge(
    title: str,
    question: str,
    *queries: Query,
    unit: str,
    steps: Steps = ALL_BLUE,
    width: int = 12,
    **shown: Unpack[Display],
) -> Panel:
    """Return a bar gauge of the values at the end of the range, in the order of the queries."""
    return Panel(
        kind="bargauge",
        title=title,
        question=question,
        queries=queries,
        width=width,
        height=8,
        defaults=_defaults(unit, steps, shown) | {"min": 0},
        overrides=_overrides(shown),
        options={
            "displayMode": "basic",
            "orientation": "horizontal",
            "valueMode": "color",
            "namePlacement": "left",
            "showUnfilled": True,
            "sizing": "auto",
            "text": {"titleSize": BAR_NAME_SIZE},
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": False, "calcs": []},
            "minVizHeight": 16,
            "minVizWidth": 8,
            "maxVizHeight": 24,
            "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        },
    )


def state_timeline(title: str, question: str, *queries: Query, colours: Mapping[str, str], width: int = 12) -> Panel:
    """Return a state timeline. Each query is 1 while its state holds."""
    words = {"0": {"text": " ", "color": "transparent", "index": 0}, "1": {"text": " ", "index": 1}}
    return Panel(
        kind="state-timeline",
        title=title,
        question=question,
        queries=queries,
        width=width,
        height=8,
        defaults={
            "unit": "none",
            "mappings": [{"type": "value", "options": words}],
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


def status_history(
    title: str, question: str, *queries: Query, unit: str, steps: Steps, **shown: Unpack[Display]
) -> Panel:
    """Return a status history: one cell per series and interval, coloured by value."""
    return Panel(
        kind="status-history",
        title=title,
        question=question,
        queries=queries,
        width=24,
        height=10,
        defaults=_defaults(unit, steps, shown) | {"custom": {"lineWidth": 0, "fillOpacity": 80}},
        options={
            "showValue": "never",
            "rowHeight": 0.9,
            "colWidth": 0.95,
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "single", "sort": "none"},
        },
    )


def table(
    title: str,
    question: str,
    *queries: Query,
    columns: Mapping[str, str],
    sort: Mapping[str, bool] = NEVER,
    width: int = 24,
    height: int = 10,
    overrides: Sequence[Json] = (),
) -> Panel:
    """Return a table with one row per series.

    Args:
        title: Title of the panel.
        question: Question that the panel answers.
        queries: Each yields one column of values. Their labels yield the other columns.
        columns: Label, or ``Value #A`` for the values of query A → heading, in this order.
        sort: Headings to sort by, and True for descending order.
        width: Width in columns, of 24.
        height: Height in units of the grid.
        overrides: Display of single columns, made by :func:`field_override`.
    """
    order = {name: place for place, name in enumerate(columns)}
    return Panel(
        kind="table",
        title=title,
        question=question,
        queries=queries,
        width=width,
        height=height,
        defaults=_defaults("none", NEUTRAL, {})
        | {
            "custom": {
                "align": "auto",
                "cellOptions": {"type": "auto"},
                "inspect": False,
                "filterable": True,
                "minWidth": COLUMN_MIN_WIDTH,
            }
        },
        overrides=tuple(overrides),
        options={
            "showHeader": True,
            "frameIndex": 0,
            "cellHeight": "sm",
            "sortBy": [{"displayName": heading, "desc": desc} for heading, desc in sort.items()],
        },
        transformations=(
            {"id": "merge", "options": {}},
            {"id": "filterFieldsByName", "options": {"include": {"names": list(columns)}}},
            {"id": "organize", "options": {"indexByName": order, "renameByName": dict(columns), "excludeByName": {}}},
        ),
    )


def field_override(heading: str, *, unit: str = "", steps: Steps | None = None, links: Iterable[Json] = ()) -> Json:
    """Return the display of one column of a table or one line of a graph. ``steps`` colour its text."""
    properties: Json = {}
    if unit:
        properties["unit"] = unit
    if steps is not None:
        properties |= {"thresholds": _thresholds(steps), "custom.cellOptions": {"type": "color-text"}}
        properties |= {"color": {"mode": "thresholds"}}
    if links:
        properties["links"] = list(links)
    return _override(heading, properties)


def reference_line(name: str) -> Json:
    """Return an override that draws a line as the reference of another."""
    return _override(
        name,
        {
            "custom.lineStyle": {"fill": "dash", "dash": [8, 6]},
            "custom.fillOpacity": 0,
            "color": {"mode": "fixed", "fixedColor": "text"},
        },
    )


def on_the_right(name: str, unit: str) -> Json:
    """Return an override that gives a line with another unit a second axis."""
    return _override(name, {"custom.axisPlacement": "right", "unit": unit})


def _over_time(
    title: str, question: str, queries: tuple[Query, ...], width: int, defaults: Json, overrides: tuple[Json, ...]
) -> Panel:
    return Panel(
        kind="timeseries",
        title=title,
        question=question,
        queries=queries,
        width=width,
        height=8,
        defaults=defaults | {"color": {"mode": "palette-classic-by-name"}},
        overrides=overrides,
        options={
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    )


def _defaults(unit: str, steps: Steps, shown: Display) -> Json:
    """Raise TypeError for an option that :class:`Display` does not have."""
    if unknown := shown.keys() - Display.__annotations__.keys():
        raise TypeError(f"A panel takes no {', '.join(sorted(unknown))}.")
    found: Json = {"unit": unit, "thresholds": _thresholds(steps), "color": {"mode": "thresholds"}, "mappings": []}
    return found | {name: value for name, value in shown.items() if name not in {"colours", "overrides"}}


def _thresholds(steps: Steps) -> Json:
    return {"mode": "absolute", "steps": [{"value": value, "color": colour} for value, colour in steps.items()]}


def _overrides(shown: Display) -> tuple[Json, ...]:
    """Return the given overrides, and one per line with a fixed colour."""
    fixed = (
        _override(name, {"color": {"mode": "fixed", "fixedColor": colour}})
        for name, colour in shown.get("colours", {}).items()
    )
    return (*fixed, *shown.get("overrides", ()))


def _override(name: str, properties: Mapping[str, Any]) -> Json:
    return {
        "matcher": {"id": "byName", "options": name},
        "properties": [{"id": key, "value": value} for key, value in properties.items()],
    }
