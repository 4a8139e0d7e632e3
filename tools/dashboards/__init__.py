"""The dashboards for Grafana, as rows of panels with a question each."""

from __future__ import annotations

from typing import Final

from tools.dashboards import fleet, grafana, job, ranks

DASHBOARDS: Final = {"fleet": fleet.DASHBOARD, "job": job.DASHBOARD, "ranks": ranks.DASHBOARD}
"""File name without extension → dashboard."""


def files() -> dict[str, str]:
    """The name of dashboard file, and what stands in it."""
    return {f"{name}.json": grafana.text(dashboard) for name, dashboard in DASHBOARDS.items()}
