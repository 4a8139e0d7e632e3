"""Wall time of the command line, against a Python that does nothing.

Every call is a separate process, as from a shell. The calls of a round come in a random order, so that varying load
affects all of them. The median must keep the limit. On a busy or slow machine the ratio to the bare Python of the same
round, scaled to a quiet machine, must keep it instead. The jobs that are listed are one that ran
for real, and copies of its directory.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from bench.harness import CannotMeasure, Options, Report, interleaved, paired_ratio

SUMMARY = "how long --help, completion and the list of local jobs take, against a bare Python"

JOBS = 20
HELP_BAR_SECONDS = 0.100
LIST_BAR_SECONDS = 0.200
QUIET_PYTHON_SECONDS = 0.012
"""Time of a bare Python on a quiet machine of the kind for which the limits were set."""


def measure(options: Options) -> Report:
    """Wall time of each call from its start to its exit."""
    rounds = 10 if options.quick else 40
    directory = Path(sys.executable).parent
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as state:
        environ = {**os.environ, "XDG_STATE_HOME": state, "KUBECONFIG": "/nonexistent"}
        keep_jobs(environ)
        arms = {
            "bare": command_timer([sys.executable, "-c", "pass"], environ),
            "help": command_timer([directory / "kubectl-ddp", "--help"], environ),
            "complete": command_timer([directory / "kubectl_complete-ddp", "submit", "--n"], environ),
            "list": command_timer([directory / "kubectl-ddp", "list", "--local"], environ),
        }
        for run in arms.values():
            run()  # byte code is written and the disk cache is warm
        times = interleaved(arms, rounds=rounds, options=options)
    report = Report()
    report.baseline("bare_python_seconds", times["bare"])
    report.figure("help_seconds", times["help"])
    report.figure("complete_seconds", times["complete"])
    report.figure("list_local_seconds", times["list"])
    report.figure("help_over_bare_python_ratio", paired_ratio(times["help"], times["bare"]))
    report.figure("list_over_bare_python_ratio", paired_ratio(times["list"], times["bare"]))
    report.figure("list_local_jobs_count", float(JOBS))
    check_wall_time(report, "kubectl-ddp --help", "help", times, HELP_BAR_SECONDS)
    check_wall_time(report, f"kubectl-ddp list --local, {JOBS} jobs", "list", times, LIST_BAR_SECONDS)
    return report


def check_wall_time(report: Report, what: str, arm: str, times: Mapping[str, Sequence[float]], bar: float) -> None:
    """Compare the wall time of an arm with its limit. On a busy machine, compare its ratio, and report that."""
    median = statistics.median(times[arm])
    if median <= bar:
        report.at_most(f"median seconds of {what}", median, bar)
        return
    ratio = statistics.median(paired_ratio(times[arm], times["bare"]))
    quiet = f"where a bare Python takes {QUIET_PYTHON_SECONDS * 1000:g} ms; {median:.3f} here"
    report.at_most(f"seconds of {what}, by its ratio, {quiet}", ratio * QUIET_PYTHON_SECONDS, bar)


def command_timer(command: list[str | Path], environ: Mapping[str, str]) -> Callable[[], float]:
    """A measurement of one command; an exit code other than 0 ends the bench, since what fails is often quick."""

    def run() -> float:
        begun = time.perf_counter()
        done = subprocess.run(command, env=environ, capture_output=True, check=False)
        seconds = time.perf_counter() - begun
        if done.returncode != 0:
            message = done.stderr.decode(errors="replace").strip()
            raise CannotMeasure(f"{' '.join(map(str, command))} exited with {done.returncode}: {message}")
        return seconds

    return run


def keep_jobs(environ: Mapping[str, str]) -> None:
    """Run one job for real, then put its directory beside itself under other names until there are twenty."""
    executable = Path(sys.executable).with_name("kubectl-ddp")
    first = "job-00"
    submit: list[str | Path] = [
        executable,
        "submit",
        "--local",
        "--wait",
        "-q",
        "--name",
        first,
        "--nnodes",
        "2",
        "--command",
        "true",
    ]
    command_timer(submit, environ)()
    jobs = Path(environ["XDG_STATE_HOME"]) / "kubectl-ddp" / "jobs"
    for number in range(1, JOBS):
        name = f"job-{number:02}"
        shutil.copytree(jobs / first, jobs / name, symlinks=True)  # what lay in memory is gone
        for file in (jobs / name).glob("*.json"):
            file.write_text(file.read_text(encoding="utf-8").replace(first, name), encoding="utf-8")
    listed = subprocess.run(
        [executable, "list", "--local", "-o", "json"], env=environ, capture_output=True, text=True, check=False
    )
    states = [item["state"] for item in json.loads(listed.stdout or "{}").get("items", [])]
    if states != ["Succeeded"] * JOBS:
        raise CannotMeasure(f"{JOBS} jobs that succeeded should be listed, and there are {states}: {listed.stderr}")
