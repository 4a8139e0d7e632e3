"""``python -m tools.dashboards DIRECTORY``: write the Grafana dashboards into a directory, one file each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tools.dashboards import fleet, grafana, job, ranks

DASHBOARDS: Final = {"fleet": fleet.DASHBOARD, "job": job.DASHBOARD, "ranks": ranks.DASHBOARD}
"""Dashboards by file name."""


def files() -> dict[str, str]:
    """Return the JSON text of each dashboard by file name."""
    return {f"{name}.json": grafana.text(each) for name, each in DASHBOARDS.items()}


def main() -> None:
    """Write the files of the command line."""
    directory = Path(sys.argv[1])
    made = files()
    for old in directory.glob("*.json"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
