"""Pictures of the documentation, taken of a real run on this machine: ``python -m tools.pictures FOLDER``.

The run trains on two nodes with two processes each, a worker is killed on the way, and the job ends by itself. Terminal
pictures show what the commands print, the report is the page in Chromium, and dashboards are drawn from what a
Prometheus has scraped of the run.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.drivers.jobs import ROOT, LocalJobs
from tests.support.browser import browser
from tests.support.prometheus_server import prometheus
from tests.support.rule_files import records, written
from tools.pictures import local_run
from tools.pictures.dashboard_panels import Recorded, shorten_window
from tools.pictures.dashboard_svg import dashboard_picture
from tools.pictures.terminal_svg import terminal_animation, terminal_picture

DASHBOARDS: Final = ROOT / "charts" / "ddp-platform" / "files" / "dashboards"
CHOICES: Final = {"namespace": "training", "namespaces": "training", "ddp_job": local_run.NAME, "rank": ".*"}
ROWS_OF: Final = {"job": 68, "ranks": 50, "fleet": 48}
"""Rows of the grid that a picture shows. Those below are about checkpoints, learning and GPUs."""
REPORT_SIZE: Final = (1280, 960, 0.8)
"""Width and height of the report's picture in pixels of the page, and its scale."""
NEEDED: Final = ("prometheus", "chromium")


def main(folder: Path) -> None:
    """Take all pictures, and write them into the folder."""
    if missing := [name for name in NEEDED if shutil.which(name) is None]:
        raise SystemExit(
            f"make picture: {' and '.join(missing)} is not installed; install it and run make picture again."
        )
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
    """Record the run: the kill in ``top``, the dashboards while it trains, and the report at its end."""
    local_run.submit_job(jobs)
    with tempfile.TemporaryDirectory(prefix="prometheus-") as place:
        rules = [{"record": name, "expr": shorten_window(expression)} for name, expression in records().items()]
        file = written(Path(place), "records.json", {"groups": [{"name": "records", "rules": rules}]})
        with prometheus(Path(place), local_run.targets(jobs), file) as server:
            while not server.query("ddp_job:ddp_goodput:ratio1h"):
                time.sleep(0.2)
            begun = time.time()
            kill, frames = local_run.record_kill(jobs)
            described = f"Rank {kill.rank} is killed, the others train on, and all {local_run.RANKS} ranks train again."
            animation = terminal_animation(f"kubectl ddp top {local_run.NAME}", frames, described=described)
            _write(folder / "top.svg", animation)
            recorded = Recorded(server.address, begun, time.time() - 1.0, CHOICES)
            for name, rows in ROWS_OF.items():
                title, panels = recorded.read(DASHBOARDS / f"{name}.json")
                _write(folder / f"dashboard-{name}.svg", dashboard_picture(title, panels, rows=rows))
    jobs.run("wait", local_run.NAME, "--for=complete", "--timeout=900s")
    page = jobs.directory / "report.html"
    jobs.run("report", local_run.NAME, "-o", str(page))
    width, height, scale = REPORT_SIZE
    with browser() as tab:
        tab.open(page, width=width)
        (folder / "report.png").write_bytes(tab.picture(height=height, scale=scale))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    print(f"{path} ({len(text) >> 10} KiB)")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
