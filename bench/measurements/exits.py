"""Runs of scripts whose libraries keep threads until the process exits: how many end by themselves, with their code.

Each run is ``ddp-launch --standalone`` with two ranks of ``bench/scripts/library_loop.py``. The libraries take turns;
one run in four ends with code 5 in place of 0. Two runs at a time load a small machine. ``EXITS_RUNS`` sets the number
of runs (600, or 20 with ``--quick``). Libraries that are not installed are named and left out: use the Python of
``make peers`` after ``pip install datasets`` there.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import CannotMeasure, Options, Report

SUMMARY = "share of runs of scripts with Arrow, tokenizers, transformers or Lightning that end by themselves"

PARTS: Final = ("torch", "local_sgd", "metrics", "transformers", "lightning")

NEEDS: Final = {
    "torch": (),
    "local_sgd": ("accelerate", "datasets"),
    "metrics": ("accelerate", "datasets", "tokenizers"),
    "transformers": ("accelerate", "datasets", "transformers"),
    "lightning": ("lightning",),
}
"""Modules that a part imports."""
SCRIPT: Final = Path(__file__).parents[1] / "scripts" / "library_loop.py"
OTHER_CODE: Final = 5
AT_ONCE: Final = 2
LIMIT_SECONDS: Final = 300.0
"""A run that takes longer counts as one that never ended."""
HELD: Final = "did not exit within"
DIED: Final = "while it exited"
"""Messages of the launcher about a worker that it had to kill, and about one that died in its exit functions."""


@dataclass(frozen=True, slots=True)
class ExitOutcome:
    """Outcome of one run."""

    library: str
    outcome: str
    """``ended``, ``held``, ``died``, ``never``, or ``code`` for a wrong one."""
    seconds: float


def measure(options: Options) -> Report:
    """Run them all."""
    libraries = [name for name in options.parts(PARTS) if _is_installed(name, options)]
    if not libraries:
        raise CannotMeasure("None of the libraries is installed; see the first lines of bench/measurements/exits.py.")
    count = int(os.environ.get("EXITS_RUNS") or (20 if options.quick else 600))
    runs = []
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for number, run in enumerate(pool.map(lambda case: _run(*case), _plan(libraries, count, options)), start=1):
            runs.append(run)
            outcomes = ", ".join(f"{name} {times}" for name, times in Counter(done.outcome for done in runs).items())
            options.progress(f"run {number}/{count}: {run.library} {run.outcome} after {run.seconds:.1f} s; {outcomes}")
    return _report(libraries, runs)


def _is_installed(library: str, options: Options) -> bool:
    missing = [name for name in NEEDS[library] if importlib.util.find_spec(name) is None]
    if missing:
        options.progress(f"{library} is left out: {', '.join(missing)} is not installed")
    return not missing


def _plan(libraries: list[str], count: int, options: Options) -> Iterator[tuple[str, int]]:
    for number in range(count):
        yield libraries[number % len(libraries)], options.random.choice([0, 0, 0, OTHER_CODE])


def _run(library: str, code: int) -> ExitOutcome:
    command = [sys.executable, "-m", "ddp_trainer", "launch", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    begun = time.monotonic()
    with subprocess.Popen(
        [*command, library, str(code)], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
            return ExitOutcome(library, _print_output("never", output), time.monotonic() - begun)
    outcome = "code" if process.returncode != code else "held" if HELD in output else "died" if DIED in output else ""
    return ExitOutcome(library, _print_output(outcome, output) if outcome else "ended", time.monotonic() - begun)


def _print_output(outcome: str, output: str) -> str:
    print(f"---- {outcome}\n{output}----", file=sys.stderr, flush=True)
    return outcome


def _report(libraries: list[str], runs: list[ExitOutcome]) -> Report:
    report = Report()
    for library in libraries:
        of_library = [run for run in runs if run.library == library]
        if of_library:
            report.figure(f"{library}_runs_count", len(of_library))
            report.figure(f"{library}_ended_count", sum(run.outcome == "ended" for run in of_library))
            report.figure(f"{library}_seconds", [run.seconds for run in of_library])
    counts = Counter(run.outcome for run in runs)
    for outcome in ("ended", "held", "died", "code", "never"):
        report.figure(f"{outcome}_count", counts[outcome])
    report.at_least("runs that end by themselves with the right code", counts["ended"] / len(runs), 1.0)
    return report
