"""Check of the dashboards with Grafana's components: ``python -m tools.dashboards_check CHROMIUM``.

A real Prometheus gets the history that the tests of the queries use. ``check.mjs`` draws every dashboard over it, in
both themes, and prints what is wrong. ``make dashboards-check`` installs the packages of ``package-lock.json`` first.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tests.render import dashboard_history as history
from tests.support.dashboards import FILES, RANGE_SECONDS
from tests.support.prometheus_history import STEP_SECONDS, remembering
from tests.support.rule_files import records
from tools.dashboards_check.drawing import INSTALLED, Drawing, PrometheusSource, draw_dashboards


def main(chromium: str) -> int:
    """Return the exit code of the check: 0 if nothing is wrong."""
    end = int(time.time()) // STEP_SECONDS * STEP_SECONDS
    job = {"namespace": history.GPT.namespace, "ddp_job": history.GPT.name}
    with (
        tempfile.TemporaryDirectory(prefix="dashboards-") as place,
        remembering(Path(place), history.lines(end), records(), end) as server,
    ):
        drawing = Drawing(
            chromium=chromium,
            dashboards=[str(path) for path in sorted(FILES.glob("*.json"))],
            pictures=str(INSTALLED / "pictures"),
            source=PrometheusSource(f"http://{server.address}", STEP_SECONDS, end, RANGE_SECONDS, job),
            themes=["dark", "light"],
            variables={"namespaces": "$__all", "rank": ".*", "datasource": "prometheus"},
        )
        return draw_dashboards(drawing, Path(place))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
