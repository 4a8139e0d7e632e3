"""Data model of a dashboard: rows of panels, each with a question and its queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

SELECTED: Final = {
    "<job>": 'namespace="$namespace", ddp_job="$ddp_job"',
    "<rank>": 'namespace="$namespace", ddp_job="$ddp_job", rank=~"$rank"',
    "<jobs>": 'namespace=~"$namespaces"',
}
"""Placeholders in expressions for the variables of a dashboard. They are not valid PromQL, so that a misspelt one fails
instead of selecting everything."""


@dataclass(frozen=True, slots=True)
class Query:
    """A query to Prometheus."""

    expr: str
    """PromQL with placeholders of :data:`SELECTED`."""
    legend: str = ""
    """Name of a line. ``{{label}}`` is replaced by the label's value."""
    now: bool = False
    """True for an instant query at the end of the range."""
    table: bool = False
    """True for a table: one row per series, one column per label."""

    @property
    def promql(self) -> str:
        """Return the expression with the matchers of the selected variables."""
        text = self.expr
        for word, matchers in SELECTED.items():
            text = text.replace(word, matchers)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """A panel."""

    kind: str
    """Name of the visualization in Grafana."""
    title: str
    question: str
    """Question that the panel answers, and how to read the answer."""
    queries: tuple[Query, ...]
    width: int
    """Width in columns, of 24."""
    height: int
    """Height in units of Grafana's grid (about 36 pixels)."""
    defaults: Json
    """Display of numbers: unit, thresholds, limits."""
    options: Json
    overrides: tuple[Json, ...] = ()
    """Overrides of single lines or columns."""
    transformations: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question together."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False
    """True for a row that is collapsed, and queries Prometheus only when opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """A dashboard."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Json, ...]
    """Variables at the top."""
    annotations: tuple[Json, ...] = ()
    since: str = "now-3h"
    """Begin of the initial time range."""
