"""The main job, as a newcomer sees it: two nodes with two processes each train on real digits, a worker is killed on
the way, and the job ends with a verified result.

Everything is done with the commands a person would type, which are shown. The summary of the run, with what was done to
it, is left at ``build/demo/summary.json``, and its page at ``build/demo/report.html``. ``make demo`` runs :func:`main`,
which ends with one sentence; ``bench demo`` holds the run to its bars.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from functools import partial
from typing import Any, Final

from bench.descendants import end_with_descendants
from bench.drivers.jobs import ROOT, LocalJobs, Rank, ranks_have_new_step
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


def main() -> None:
    """Run the demo, and print its result in a sentence. Exits with 1 if the job failed, lost or repeated samples."""
    end_with_descendants()
    try:
        summary, _ = run_demo(Options(progress=partial(print, flush=True)))
    except CannotMeasure as error:
        sys.exit(str(error))
    print(f"\n{describe_result(summary)}")
    sys.exit(bool(summary["samples_lost"] or summary["samples_repeated"]))


def describe_result(summary: dict[str, Any]) -> str:
    """Return the result of the demo in two sentences."""
    lost, repeated = summary["samples_lost"], summary["samples_repeated"]
    samples = f"samples lost: {lost}, repeated: {repeated}" if lost or repeated else "no sample was lost or repeated"
    victim = summary["worker_killed"]
    return (
        f"Rank {victim['rank']} was killed at step {victim['step']}, and all {RANKS} ranks trained again "
        f"{summary['recovery_seconds']:.1f} s later; {samples}. "
        f"The model reads {summary['accuracy']:.1%} of the test's digits."
    )


def measure(options: Options) -> Report:
    """Run the demo."""
    return build_report(*run_demo(options))


def run_demo(options: Options) -> tuple[dict[str, Any], float]:
    """Run the demo, and return its summary and its seconds."""
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    jobs = LocalJobs(DIRECTORY / "state")
    begun = time.monotonic()
    try:
        summary = run_job_with_kill(jobs, options)
    finally:
        jobs.run("delete", NAME, "--yes", check=False)
    seconds = time.monotonic() - begun
    (DIRECTORY / "summary.json").write_text(json.dumps(summary | {"demo_seconds": round(seconds, 1)}, indent=1) + "\n")
    options.progress(
        f"\nThe job's page is {(DIRECTORY / 'report.html').relative_to(ROOT)}, its summary summary.json beside it."
    )
    return summary, seconds


def run_job_with_kill(jobs: LocalJobs, options: Options) -> dict[str, Any]:
    """Submit, kill a worker, wait; return the summary of the run and the observations."""
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
    again = jobs.wait(NAME, ranks_have_new_step(RANKS, killed), timeout=LIMIT_SECONDS)
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


if __name__ == "__main__":
    main()
