"""Dashboards drawn by Grafana's components: Node, with the packages of ``package-lock.json``, and Chromium."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).resolve().parent
INSTALLED: Final = SOURCES.parents[1] / "build" / "dashboards-check"
"""Folder with copies of the sources, and their packages."""


@dataclass(frozen=True, slots=True)
class PrometheusSource:
    """A Prometheus, the time range to show, and the values of the dashboards' variables."""

    address: str
    """URL of the Prometheus."""
    scrapeSeconds: int  # noqa: N815 - a name of the page
    end: int
    """Unix time."""
    seconds: int
    choices: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Input of ``check.mjs``."""

    chromium: str
    dashboards: Sequence[str]
    """JSON files of dashboards."""
    pictures: str
    """Folder of the pictures, ``NAME-THEME.webp``."""
    source: PrometheusSource
    themes: Sequence[str]
    variables: Mapping[str, str] = field(default_factory=dict)
    """Expected values of further variables."""
    width: int = 1600
    """Width of the page in pixels."""
    quality: int = 80
    """Quality of the pictures, up to 100."""
    isCompact: bool = False  # noqa: N815
    """Leave out closed rows and panels without data; the panels beside one take its place."""


def draw_dashboards(drawing: Drawing, place: Path) -> int:
    """Draw, and print what is wrong. Returns the exit code: 0 if nothing is.

    Args:
        drawing: What is drawn.
        place: Folder for temporary files.
    """
    for source in SOURCES.iterdir():
        if source.suffix in {".js", ".jsx", ".mjs", ".json"}:
            shutil.copy(source, INSTALLED)
    task = place / "task.json"
    task.write_text(json.dumps(asdict(drawing)), encoding="utf-8")
    return subprocess.run(["node", INSTALLED / "check.mjs", task], check=False).returncode
