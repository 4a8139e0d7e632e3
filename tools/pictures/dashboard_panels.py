"""Panels of a Grafana dashboard with the data that a Prometheus has for them."""

from __future__ import annotations

import json
import re
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

POINTS: Final = 90
"""Samples of a curve."""
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|([a-zA-Z_]\w*))")
_LEGEND: Final = re.compile(r"\{\{\s*(\w+)\s*\}\}")


@dataclass(frozen=True, slots=True)
class Curve:
    """One series of a panel."""

    name: str
    labels: Mapping[str, str]
    query: str
    """``refId`` of its query."""
    values: Sequence[tuple[float, float]]
    """Unix times and values; a single one if the query is about one moment."""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel as in the file of the dashboard, with its data."""

    model: Mapping[str, Any]
    curves: Sequence[Curve] = field(default=())
    span: tuple[float, float] = (0.0, 1.0)
    """Unix times between which its curves are drawn."""

    @property
    def kind(self) -> str:
        """Grafana's name of the visualization."""
        return str(self.model["type"])

    @property
    def title(self) -> str:
        """Title of the panel, or of the row."""
        return str(self.model["title"])

    @property
    def place(self) -> tuple[int, int, int, int]:
        """Column, row, width and height on the grid of 24 columns."""
        grid = self.model["gridPos"]
        return grid["x"], grid["y"], grid["w"], grid["h"]

    def unit(self, name: str = "") -> str:
        """Unit of the panel, or of the column with this name."""
        config = self.model["fieldConfig"]
        for override in config["overrides"]:
            if name and override["matcher"]["options"] == name:
                for each in override["properties"]:
                    if each["id"] == "unit":
                        return str(each["value"])
        return str(config["defaults"].get("unit", "none"))


@dataclass(frozen=True, slots=True)
class Recorded:
    """A Prometheus, and the time that the pictures show."""

    address: str
    start: float
    end: float
    choices: Mapping[str, str]
    """Values of the dashboard's variables."""

    def read(self, dashboard: Path) -> tuple[str, list[Panel]]:
        """Return the title of a dashboard, and its panels outside of collapsed rows with their data."""
        model = json.loads(dashboard.read_text(encoding="utf-8"))
        panels = [
            Panel(each, [] if each["type"] == "row" else list(self._curves(each)), (self.start, self.end))
            for each in model["panels"]
        ]
        return str(model["title"]), [
            panel for panel in panels if not (panel.kind == "row" and panel.model["collapsed"])
        ]

    def _curves(self, panel: Mapping[str, Any]) -> Iterator[Curve]:
        for target in panel["targets"]:
            for told in self._ask(self._filled(target["expr"]), is_instant=bool(target["instant"])):
                labels = dict(told["metric"])
                pairs = told["values"] if "values" in told else [told["value"]]
                values = [(float(moment), float(value)) for moment, value in pairs]
                yield Curve(_legend(target["legendFormat"], labels), labels, target["refId"], values)

    def _ask(self, expression: str, *, is_instant: bool) -> list[dict[str, Any]]:
        span: dict[str, object] = {"time": self.end}
        if not is_instant:
            span = {"start": self.start, "end": self.end, "step": max(1.0, (self.end - self.start) / POINTS)}
        query = urllib.parse.urlencode({"query": expression, **span})
        url = f"http://{self.address}/api/v1/query{'' if is_instant else '_range'}?{query}"
        with urllib.request.urlopen(url, timeout=60) as answer:
            data = json.load(answer)["data"]
        if data["resultType"] == "scalar":
            return [{"metric": {}, "value": data["result"]}]
        found: list[dict[str, Any]] = data["result"]
        return found

    def _filled(self, expression: str) -> str:
        built_in = {"__rate_interval": "10s", "__interval": "2s", "__range": f"{self.end - self.start:.0f}s"}
        known = {**built_in, **self.choices}
        return shorten_window(_VARIABLE.sub(lambda found: known[found[1] or found[2]], expression))


def shorten_window(expression: str) -> str:
    """Return a query or rule that looks back 15 s in place of 5 min, since the recorded run is short."""
    return expression.replace("[5m]", "[15s]")


def _legend(form: str, labels: Mapping[str, str]) -> str:
    if form == "__auto":
        return ", ".join(value for name, value in labels.items() if name != "__name__")
    return _LEGEND.sub(lambda found: labels.get(found[1], ""), form).strip()
