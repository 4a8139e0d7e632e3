"""``python -m tools.dashboards DIRECTORY``: write the dashboards for Grafana there, one file each."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tools.dashboards import fleet, grafana, job, ranks

DASHBOARDS: Final = {"fleet": fleet.DASHBOARD, "job": job.DASHBOARD, "ranks": ranks.DASHBOARD}
"""By the name of the file."""


def files() -> dict[str, str]:
    """The name of each file, and what stands in it."""
    return {f"{name}.json": grafana.text(each) for name, each in DASHBOARDS.items()}


def main() -> None:
    """Write the files."""
    directory = Path(sys.argv[1])
    made = files()
    for old in directory.glob("*.json"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        (directory / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
