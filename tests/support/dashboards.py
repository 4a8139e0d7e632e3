"""The dashboards of charts/ddp-platform, as Grafana reads them: their panels, and what these ask."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from tests.support.helm import PLATFORM

FILES: Final = PLATFORM / "files" / "dashboards"
DASHBOARDS: Final[dict[str, dict[str, Any]]] = {
    path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(FILES.glob("*.json"))
}
"""Dashboards by file name."""
RANGE_SECONDS: Final = 3600
BUILT_IN: Final = {"__rate_interval": "1m", "__interval": "15s", "__range": f"{RANGE_SECONDS}s"}
"""Built-in variables of Grafana, for a range of an hour and a scrape every 15 s."""


@dataclass(frozen=True)
class Question:
    """A query, and who asks it."""

    dashboard: str
    asker: str
    """Panel, annotation or variable."""
    expr: str
    now: bool = True
    """Asked at one moment alone."""
    legend: str = ""

    def __str__(self) -> str:
        return f"{self.dashboard}/{self.asker}"


def panels(dashboard: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """All panels that show something, those of closed rows too."""
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            yield from panel["panels"]
        else:
            yield panel


def questions() -> Iterator[Question]:
    """Every query of panels and annotations; those of variables are of another kind."""
    for name, dashboard in DASHBOARDS.items():
        for panel in panels(dashboard):
            for target in panel["targets"]:
                asker = f"{panel['title']}/{target['refId']}"
                yield Question(name, asker, target["expr"], target["instant"], target["legendFormat"])
        for mark in dashboard["annotations"]["list"]:
            yield Question(name, mark["name"], mark["expr"], now=False)


def filled(text: str, choices: Mapping[str, str]) -> str:
    """The text with every variable replaced, as ``$name`` and as ``${name}``. Raises KeyError for one that is unknown.

    >>> filled('rate(a_total{rank=~"$rank"}[${__interval}])', {"rank": "[01]"})
    'rate(a_total{rank=~"[01]"}[15s])'
    """
    known = BUILT_IN | dict(choices)
    return re.sub(r"\$(?:\{(\w+)\}|([a-zA-Z_]\w*))", lambda found: known[found[1] or found[2]], text)
