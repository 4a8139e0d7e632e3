"""Files and crossings between files on two paths: one DDP step, and the death of a worker until the restart.

A crossing is a call of a Python function of ``ddp_trainer`` from another file of it. The step is one of the reference
trainer on two ranks, with metrics. Of the traced steps, the one with the median number of crossings counts, because
some steps also evaluate, sample the waits of DDP, or plan further steps. The death is of one of two workers of a node,
from its exit to the start of the next workers.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from bench.harness import CannotMeasure, Options, Report
from bench.workloads import call_trace
from ddp_trainer.common.constants import Env

SUMMARY = "files and crossings between files of one DDP step, and of a worker's death"

PARTS: Final = ("step", "death")
MOST: Final = {"step": (12, 60), "death": (25, 100)}
"""Part → most files and crossings."""
SCRIPT: Final = Path(__file__).parents[1] / "scripts" / "dies_once.py"


def measure(options: Options) -> Report:
    """Trace the selected paths."""
    report = Report()
    for part in options.parts(PARTS):
        counts = trace_step() if part == "step" else trace_worker_exit()
        for figure in ("calls", "functions", "crossings"):
            report.figure(f"{part}_{figure}_count", counts[figure])
        report.figure(f"{part}_files_count", len(counts["files"]))
        report.details[f"{part}_files"] = counts["files"]
        files, crossings = MOST[part]
        report.at_most(f"files of a {part}", len(counts["files"]), files)
        report.at_most(f"crossings of a {part}", counts["crossings"], crossings)
    return report


def trace_step() -> dict[str, Any]:
    """Return the counts of the median step of rank 0."""
    flags = ["--standalone", "--nproc-per-node", "2", "-m", call_trace.__name__, "step", "--task", "digits"]
    steps = _run([sys.executable, "-m", "ddp_trainer", "launch", *flags], "step-0-*.json")
    return sorted(steps, key=lambda step: int(step["crossings"]))[len(steps) // 2]


def trace_worker_exit() -> dict[str, Any]:
    """Return the counts of a launcher between the exit of a worker and the start of the next ones."""
    flags = ["--standalone", "--nproc-per-node", "2", "--max-restarts", "1", str(SCRIPT)]
    [death] = _run([sys.executable, "-m", call_trace.__name__, "death", *flags], "death.json")
    return death


def _run(command: list[str], results: str) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as folder:
        environment = {**os.environ, "TRACE": folder, Env.METRICS_DIR: folder, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        found = [json.loads(path.read_text()) for path in sorted(Path(folder).glob(results))]
        if done.returncode or not found:
            raise CannotMeasure(f"The traced program ended with {done.returncode}: {done.stderr[-2000:]}")
        return found
