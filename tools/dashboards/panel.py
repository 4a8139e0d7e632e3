"""What a dashboard consists of: rows of panels, each with its question and the queries that answer it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

SELECTED: Final = {
    "<job>": 'namespace="$namespace", ddp_job="$ddp_job"',
    "<rank>": 'namespace="$namespace", ddp_job="$ddp_job", rank=~"$rank"',
    "<jobs>": 'namespace=~"$namespaces"',
}
"""What an expression may say for the choice at the top of its dashboard. They are no PromQL, so that a word that is
misspelt here does not go through as a query of everything."""


@dataclass(frozen=True, slots=True)
class Query:
    """One question to Prometheus."""

    expr: str
    """In PromQL, with words of :data:`SELECTED` for what is chosen."""
    legend: str = ""
    """Name of a line; ``{{label}}`` stands for the label's value."""
    now: bool = False
    """At the end of the range alone, not over it."""
    table: bool = False
    """One row for each series, one column for each label."""

    @property
    def promql(self) -> str:
        """The expression as Grafana gets it."""
        text = self.expr
        for word, matchers in SELECTED.items():
            text = text.replace(word, matchers)
        return text


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture."""

    kind: str
    """Grafana's name of the visualization."""
    title: str
    question: str
    """What it answers, and what to make of the answer."""
    queries: tuple[Query, ...]
    width: int
    """Of 24 columns."""
    height: int
    """In units of Grafana's grid, about 36 pixels."""
    defaults: Json
    """How numbers are shown: unit, thresholds, limits."""
    options: Json
    overrides: tuple[Json, ...] = ()
    """How single lines or columns are shown otherwise."""
    transformations: tuple[Json, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """Panels that answer one question together."""

    title: str
    panels: tuple[Panel, ...]
    collapsed: bool = False
    """Closed until somebody opens it; nothing is asked of Prometheus until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dashboard:
    """One page."""

    uid: str
    title: str
    description: str
    rows: tuple[Row, ...]
    variables: tuple[Json, ...]
    """What can be chosen at its top."""
    annotations: tuple[Json, ...] = ()
    since: str = "now-3h"
    """Where the range begins that is shown first."""
