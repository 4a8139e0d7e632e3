"""Pictures of the documentation, taken of a real run on this machine: ``python -m tools.pictures FOLDER``.

The run trains on two nodes with two processes each. A worker is killed, one node leaves and returns, and the job ends
by itself. Terminal pictures show what the commands print, the report is the page in Chromium, and Grafana's components
draw the dashboards from what a Prometheus has scraped of the run. ``make picture`` installs these first.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.drivers.jobs import LocalJobs
from tests.support.browser import browser, program
from tests.support.dashboards import FILES
from tests.support.prometheus_server import Prometheus, prometheus
from tests.support.rule_files import records, written
from tools.dashboards_check.drawing import Drawing, PrometheusSource, draw_dashboards
from tools.pictures import local_run
from tools.pictures.terminal_svg import terminal_animation, terminal_picture

CHOICES: Final = {"namespace": "training", "ddp_job": local_run.NAME, "rank": ".*"}
STEP_SECONDS: Final = 5
"""Between the points of a curve."""
REPORT_SIZE: Final = (1280, 960, 0.8)
"""Width and height of the report's picture in pixels of the page, and its scale."""


def main(folder: Path) -> None:
    """Take all pictures, and write them into the folder."""
    if missing := [name for name in ("prometheus", "node") if shutil.which(name) is None]:
        raise SystemExit(f"make picture: {' and '.join(missing)} is not installed; install it and try again.")
    with tempfile.TemporaryDirectory(prefix="pictures-") as state:
        jobs = LocalJobs(Path(state))
        try:
            _take_run(jobs, folder)
        finally:
            jobs.run("delete", local_run.NAME, "--yes", check=False)
        lines = local_run.record_hang(jobs)
        described = "Cause of a hang: one rank is stopped, and the other waits for it."
        _write(folder / "why.svg", terminal_picture(f"kubectl ddp why {local_run.HANGING}", lines, described=described))


def _take_run(jobs: LocalJobs, folder: Path) -> None:
    """Record the run: the kill in ``top``, the dashboards just before the end, and the report after it."""
    local_run.submit_job(jobs)
    with tempfile.TemporaryDirectory(prefix="prometheus-") as place:
        rules = [{"record": name, "expr": shorten_window(expression)} for name, expression in records().items()]
        file = written(Path(place), "records.json", {"groups": [{"name": "records", "rules": rules}]})
        with prometheus(Path(place), local_run.scrape_targets(jobs), file) as server:
            begun = time.time()
            kill, frames = local_run.record_kill(jobs)
            described = f"Rank {kill.rank} is killed, the others train on, and all {local_run.RANKS} ranks train again."
            animation = terminal_animation(f"kubectl ddp top {local_run.NAME}", frames, described=described)
            _write(folder / "top.svg", animation)
            local_run.resize_group(jobs)
            _draw_dashboards(server, begun, Path(place), folder)
    jobs.run("wait", local_run.NAME, "--for=complete", "--timeout=900s")
    page = jobs.directory / "report.html"
    jobs.run("report", local_run.NAME, "-o", str(page))
    width, height, scale = REPORT_SIZE
    with browser() as tab:
        tab.open(page, width=width)
        (folder / "report.png").write_bytes(tab.picture(height=height, scale=scale))


def _draw_dashboards(server: Prometheus, begun: float, place: Path, folder: Path) -> None:
    end = int(time.time()) // STEP_SECONDS * STEP_SECONDS
    for path in FILES.glob("*.json"):
        (place / f"dashboard-{path.name}").write_text(shorten_window(path.read_text("utf-8")), encoding="utf-8")
    drawing = Drawing(
        chromium=program() or "",
        dashboards=[str(path) for path in sorted(place.glob("dashboard-*.json"))],
        pictures=str(folder),
        source=PrometheusSource(f"http://{server.address}", STEP_SECONDS, end, int(end - begun), CHOICES),
        themes=["light"],
        quality=60,
        isCompact=True,
    )
    if draw_dashboards(drawing, place):
        raise SystemExit("make picture: a dashboard is not as it should be.")


def shorten_window(text: str) -> str:
    """Return queries or rules that look back 30 s in place of 5 min, since the recorded run is short."""
    return text.replace("[5m]", "[30s]")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    print(f"{path} ({len(text) >> 10} KiB)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
