"""The main job, as a newcomer sees it: two nodes with two processes each train on real digits, a worker is killed on
the way, and the job ends with a verified result.

Everything is done with the commands a person would type, which are shown. The summary of the run, with what was done to
it, is left at ``build/demo/summary.json``, and its page at ``build/demo/report.html``.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from typing import Any, Final

from bench.drivers.jobs import ROOT, LocalJobs, Rank, ranks_have_stepped
from bench.harness import CannotMeasure, Options, Report

SUMMARY = "accuracy, seconds and samples lost of the demo job, whose worker is killed on the way"

JOB_FILE: Final = "manifests/examples/digits.ddp.yaml"
DIRECTORY: Final = ROOT / "build" / "demo"
NAME: Final = "digits"
RANKS: Final = 4
KILL_AT_STEP: Final = 100
LIMIT_SECONDS: Final = 90.0


def show_command(options: Options, *words: str) -> None:
    """Show a command as it would be typed."""
    options.progress(f"\n$ kubectl-ddp {' '.join(words)}")


def measure(options: Options) -> Report:
    """Run the demo."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    jobs = LocalJobs(DIRECTORY / "state")
    begun = time.monotonic()
    try:
        summary = run(jobs, options)
    finally:
        jobs.run("delete", NAME, "--yes", check=False)
    seconds = time.monotonic() - begun
    (DIRECTORY / "summary.json").write_text(json.dumps(summary | {"demo_seconds": round(seconds, 1)}, indent=1) + "\n")
    options.progress(f"\nThe summary is in {(DIRECTORY / 'summary.json').relative_to(ROOT)}")
    return build_report(summary, seconds)


def run(jobs: LocalJobs, options: Options) -> dict[str, Any]:
    """Submit, kill a worker, wait; answers with the run's summary and what was seen on the way."""
    submit = ("submit", "--local", "-f", JOB_FILE, "--name", NAME)
    show_command(options, *submit)
    jobs.run(*submit)
    ranks = jobs.wait(NAME, lambda found: _all_at(found, KILL_AT_STEP), timeout=LIMIT_SECONDS)
    if ranks is None:
        raise CannotMeasure(f"The job did not reach step {KILL_AT_STEP}: {jobs.run('logs', NAME, check=False)}")
    show_command(options, "top", NAME, "--once")
    options.progress(jobs.run("top", NAME, "--once"))
    victim = ranks[RANKS - 1]
    options.progress(f"$ kill -9 {victim.pid}   # rank {victim.rank} in pod {victim.pod}, at step {victim.step}")
    killed = time.time()
    os.kill(victim.pid, signal.SIGKILL)
    again = jobs.wait(NAME, ranks_have_stepped(RANKS, killed), timeout=LIMIT_SECONDS)
    if again is None:
        raise CannotMeasure(f"The job did not train again: {jobs.run('logs', NAME, check=False)}")
    recovered = max(rank.last_step_time for rank in again.values()) - killed
    options.progress(f"All {RANKS} ranks step again, {recovered:.1f} s after the kill.")
    wait = ("wait", NAME, "--for=complete", "--timeout=90s")
    show_command(options, *wait)
    jobs.run(*wait)
    show_command(options, "status", NAME)
    options.progress(jobs.run("status", NAME))
    report = ("report", NAME, "-o", str((DIRECTORY / "report.html").relative_to(ROOT)))
    show_command(options, *report)
    jobs.run(*report)
    summary: dict[str, Any] = json.loads((jobs.directory / "kubectl-ddp/jobs" / NAME / "summary.json").read_text())
    return summary | {
        "worker_killed": {"rank": victim.rank, "pod": victim.pod, "step": victim.step, "signal": "SIGKILL"},
        "recovery_seconds": round(recovered, 2),
        "ranks_scraped": sorted(ranks.keys() & again.keys()),
    }


def _all_at(ranks: dict[int, Rank], step: int) -> bool:
    return len(ranks) == RANKS and all(rank.step >= step for rank in ranks.values())


def build_report(summary: dict[str, Any], seconds: float) -> Report:
    """Hold the run to what is promised."""
    report = Report()
    report.figure("accuracy_ratio", summary["accuracy"])
    report.figure("demo_seconds", seconds)
    report.figure("recovery_seconds", summary["recovery_seconds"])
    report.figure("lost_samples", summary["samples_lost"])
    report.figure("repeated_samples", summary["samples_repeated"])
    report.at_least("test accuracy", summary["accuracy"], 0.97)
    report.at_most("seconds from submit to result", seconds, LIMIT_SECONDS)
    report.at_most("samples lost", summary["samples_lost"], 0)
    report.at_most("samples repeated", summary["samples_repeated"], 0)
    report.at_least("restarts after a failure", summary["restarts"].get("failure", 0), 1)
    report.at_least("ranks whose metrics were scraped", len(summary["ranks_scraped"]), RANKS)
    return report
