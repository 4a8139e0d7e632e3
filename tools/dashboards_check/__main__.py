"""Check of the dashboards with Grafana's components: ``python -m tools.dashboards_check CHROMIUM``.

A real Prometheus gets the history that the tests of the queries use. ``check.mjs`` draws every dashboard over it, in
both themes, and prints what is wrong. ``make dashboards-check`` installs the packages of ``package-lock.json`` first.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from tests.render import dashboard_history as history
from tests.support.dashboards import FILES, RANGE_SECONDS
from tests.support.prometheus_history import STEP_SECONDS, remembering
from tests.support.rule_files import records

INSTALLED: Final = Path(__file__).resolve().parents[2] / "build" / "dashboards-check"
"""Folder with the sources beside this file, and their packages."""


def main(chromium: str) -> int:
    """Return the exit code of the check: 0 if nothing is wrong."""
    end = int(time.time()) // STEP_SECONDS * STEP_SECONDS
    job = {"namespace": history.GPT.namespace, "ddp_job": history.GPT.name}
    with (
        tempfile.TemporaryDirectory(prefix="dashboards-") as place,
        remembering(Path(place), history.lines(end), records(), end) as server,
    ):
        asked = {"address": f"http://{server.address}", "scrapeSeconds": STEP_SECONDS, "end": end}
        task = {
            "chromium": chromium,
            "dashboards": [str(path) for path in sorted(FILES.glob("*.json"))],
            "pictures": str(INSTALLED / "pictures"),
            "asked": {**asked, "seconds": RANGE_SECONDS, "choices": job},
            "variables": {"namespaces": "$__all", "rank": ".*", "datasource": "prometheus"},
            "themes": ["dark", "light"],
        }
        file = Path(place, "task.json")
        file.write_text(json.dumps(task), encoding="utf-8")
        return subprocess.run(["node", INSTALLED / "check.mjs", file], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
