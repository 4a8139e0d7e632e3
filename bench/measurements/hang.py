"""Detection of hangs: the rank named when one stops, loops, holds the GIL, skips a collective or enters another; the
time until it is named and until the group re-forms; the time of ``kubectl ddp hang`` from the fault on.

Two programs run: the reference trainer, which reports its sections, and a plain DDP script. Stock torchrun also runs
the script. It is watched for as long as ours took to train again, or for a minute if ours are left out. ``--only``
names some of script, trainer, command and stock. ``HANG_ROUNDS`` sets the number of rounds (20).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.drivers.fork_server import children
from bench.harness import CannotMeasure, Options, Report

SUMMARY = "share of hanging ranks that are named rightly, and how soon, for our trainer and for a plain DDP script"

SCRIPTS: Final = Path(__file__).parents[1] / "scripts"
JOB: Final = "hanging"
NPROC: Final = 3
FLOOR_SECONDS: Final = 3.0
"""``--hang-floor``: what a run of a few seconds cannot learn."""
PATIENCE_SECONDS: Final = 300.0
"""A machine that stalls for seconds teaches limits of minutes."""

STOCK_SECONDS: Final = 60.0

KINDS: Final = {
    "stop": "is stopped by a signal",
    "loop": "did not enter ",
    "gil": "holds the GIL",
    "skip": "where barrier",
    "mismatch": "where barrier",
    "wait": "holds the GIL",
}
"""Fault → text that the message about its rank must contain."""

PROGRAMS: Final = {
    "script": [str(SCRIPTS / "hanging_ddp.py")],
    "trainer": [
        *("-m", "ddp_trainer", "train", "--task", "hanging_task:Hanging", "--epochs", "1000000"),
        *("--batch-slices", str(NPROC), "--evaluate-every", "1000000", "--timeout-seconds", "600"),
    ],
}
PARTS: Final = (*PROGRAMS, "command", "stock")
COMMAND_SECONDS: Final = 30.0
"""Time limit for the command to name the rank. The launcher's own limit is minutes."""
READY: Final = r"\bready: "
NAMING: Final = r"(?:hang: |waiting: the others wait for )"
NAMED: Final = re.compile(NAMING + r"(?P<what>rank (?P<rank>\d+) on .* for [\d.]+ s) \(limit (?P<limit>[\d.]+) s\)")


@dataclass(slots=True)
class FaultStats:
    """Results of the faults of one kind."""

    count: int = 0
    right: int = 0
    again: int = 0
    seconds: list[float] = field(default_factory=list)
    """Seconds from each fault to the naming of its rank."""
    of_limit: list[float] = field(default_factory=list)
    """The same as a share of the launcher's learned limit."""
    recovered: list[float] = field(default_factory=list)
    """Seconds from each fault until the new group trains."""


class Launch:
    """A launcher, with its output lines and their times."""

    def __init__(self, command: list[str], trouble: Path) -> None:
        environment = {**os.environ, "TROUBLE": str(trouble), "PYTHONPATH": str(SCRIPTS), "DDP_FORK_SERVER": "1"}
        self._trouble = trouble
        self._process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        )
        self._lines: queue.SimpleQueue[tuple[float, str] | None] = queue.SimpleQueue()
        self._last = ""
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put((time.monotonic(), line.rstrip()))
        self._lines.put(None)

    def wait(self, pattern: str, seconds: float = PATIENCE_SECONDS) -> tuple[float, str] | None:
        """Return the first matching line and its time; None after so many seconds."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            try:
                line = self._lines.get(timeout=left)
            except queue.Empty:
                return None
            if line is None:
                raise CannotMeasure(f"It ended before it printed {pattern!r}; its last line: {self._last}")
            self._last = line[1]
            if re.search(pattern, line[1]):
                return line
        return None

    def order(self, rank: int, kind: str) -> float:
        """Cause a fault in a rank, and return its time."""
        unread = self._trouble / "unread"
        unread.write_text(kind)
        unread.replace(self._trouble / f"rank-{rank}")
        struck = self.wait(f"trouble: rank={rank} kind={kind}")
        if struck is None:
            raise CannotMeasure(f"Rank {rank} did not get into trouble; did the program start?")
        return struck[0]

    def close(self) -> None:
        """End it, and all of its workers with it: those of stock torchrun outlive it."""
        workers = children(self._process.pid)
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for worker in workers:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker, signal.SIGKILL)


@contextmanager
def launched(command: list[str]) -> Iterator[Launch]:
    """A launcher that is under way."""
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as directory:
        launch = Launch(command, Path(directory))
        try:
            if launch.wait(READY) is None:
                raise CannotMeasure(f"{' '.join(command)} did not begin to train.")
            yield launch
        finally:
            launch.close()


def launch_command(program: str) -> list[str]:
    """The command of our launcher."""
    flags = ["--nproc-per-node", str(NPROC), "--max-restarts", "100000"]
    watch = ["--on-hang", "act", "--hang-floor", str(FLOOR_SECONDS)]
    return [sys.executable, "-m", "ddp_trainer", "launch", *flags, *watch, *PROGRAMS[program]]


def one_fault(launch: Launch, kind: str, rank: int, tally: FaultStats) -> str:
    """Cause a fault, record the named rank and the recovery of the group, and return the message."""
    begun = launch.order(rank, kind)
    tally.count += 1
    named = launch.wait(f"{NAMING}rank")
    match = NAMED.search(named[1]) if named else None
    if named and match:
        tally.right += int(match["rank"]) == rank and KINDS[kind] in match["what"]
        tally.seconds.append(named[0] - begun)
        tally.of_limit.append((named[0] - begun) / float(match["limit"]))
    if again := launch.wait(READY):
        tally.again += 1
        tally.recovered.append(again[0] - begun)
    return match["what"] if match else "nobody was named"


def measure_program(program: str, options: Options) -> dict[str, FaultStats]:
    """Cause every kind of fault several times in one run, which continues after each."""
    tallies = {kind: FaultStats() for kind in KINDS}
    rounds = round_count(options)
    with launched(launch_command(program)) as launch:
        for number in range(1, rounds + 1):
            for kind in options.random.sample(list(KINDS), k=len(KINDS)):
                outcome = one_fault(launch, kind, options.random.randrange(NPROC), tallies[kind])
                options.progress(f"{program}, round {number}/{rounds}, {kind}: {outcome}")
    return tallies


@contextmanager
def submitted() -> Iterator[Launch]:
    """Submit the script as a local job in a temporary directory, and follow it."""
    plugin = [sys.executable, "-m", "kubectl_ddp"]
    with tempfile.TemporaryDirectory(prefix="ddp-bench-") as place, contextlib.ExitStack() as stack:
        os.environ["XDG_STATE_HOME"] = place
        stack.callback(os.environ.pop, "XDG_STATE_HOME")
        trouble = Path(place) / "trouble"
        trouble.mkdir()
        variables = {"TROUBLE": str(trouble), "PYTHONPATH": str(SCRIPTS), "DDP_FORK_SERVER": "1"}
        flags = ["--nproc", str(NPROC), "--max-restarts", "10000", "--preflight", "off", "--follow"]
        flags += [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
        stack.callback(subprocess.run, [*plugin, "delete", JOB, "--local", "--yes"], capture_output=True, check=False)
        launch = Launch([*plugin, "submit", *PROGRAMS["script"], "--local", "--name", JOB, *flags], trouble)
        stack.callback(launch.close)
        if launch.wait(READY) is None:
            raise CannotMeasure("The job did not begin to train.")
        yield launch


def measure_hang_command(launch: Launch, kind: str, rank: int, tally: FaultStats) -> str:
    """Cause a fault, and run the command immediately; then kill the rank, so that the group re-forms."""
    begun = launch.order(rank, kind)
    tally.count += 1
    command = [sys.executable, "-m", "kubectl_ddp", "hang", JOB, "--local", "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout) if done.stdout else {"sentence": done.stderr, "culprits": []}
    tally.seconds.append(time.monotonic() - begun)
    named = [culprit["rank"] for culprit in report["culprits"]]
    tally.right += named == [rank] and KINDS[kind] in report["sentence"] and bool(report["culprits"][0]["stack"])
    pids = [state["pid"] for state in report.get("ranks", ()) if state["rank"] == rank and state["pid"] is not None]
    if not pids:
        raise CannotMeasure(f"The command showed no process of rank {rank}: {report['sentence']}")
    os.kill(pids[0], signal.SIGKILL)
    if again := launch.wait(READY):
        tally.again += 1
        tally.recovered.append(again[0] - begun)
    return str(report["sentence"])


def measure_command(options: Options) -> dict[str, FaultStats]:
    """Cause every kind of fault several times in one job whose launcher names no rank for minutes."""
    tallies = {kind: FaultStats() for kind in KINDS}
    rounds = round_count(options)
    with submitted() as launch:
        for number in range(1, rounds + 1):
            for kind in options.random.sample(list(KINDS), k=len(KINDS)):
                outcome = measure_hang_command(launch, kind, options.random.randrange(NPROC), tallies[kind])
                options.progress(f"command, round {number}/{rounds}, {kind}: {outcome}")
    return tallies


def report_command(report: Report, options: Options) -> None:
    """Report the figures and limits of the command."""
    for kind, tally in measure_command(options).items():
        report.figure(f"command_{kind}_named_ratio", tally.right / tally.count)
        seconds = report.figure(f"command_{kind}_named_seconds", tally.seconds)
        report.at_least(f"share of {tally.count} named rightly, {kind}, command", tally.right / tally.count, 1.0)
        report.at_most(f"latest name by the command, {kind}", seconds.maximum, COMMAND_SECONDS)


def round_count(options: Options) -> int:
    """Return the number of faults of each kind."""
    return int(os.environ.get("HANG_ROUNDS", "3" if options.quick else "20"))


def torchrun_detects_fault(kind: str, seconds: float) -> bool:
    """Return whether stock torchrun prints a message about a fault, or trains again, within so many seconds."""
    flags = ["--standalone", "--nproc-per-node", str(NPROC), "--max-restarts", "100"]
    with launched([sys.executable, "-m", "torch.distributed.run", *flags, *PROGRAMS["script"]]) as launch:
        launch.order(1, kind)
        return launch.wait(rf"{READY}|[Hh]ang|[Rr]ank\D*1\b", seconds) is not None


def measure(options: Options) -> Report:
    """Measure both programs, and stock torchrun with the script."""
    report = Report()
    parts = options.parts(PARTS)
    slowest = 0.0
    for program in (program for program in PROGRAMS if program in parts):
        for kind, tally in measure_program(program, options).items():
            name = f"{program}_{kind}"
            report.figure(f"{name}_named_ratio", tally.right / tally.count)
            report.figure(f"{name}_recovered_ratio", tally.again / tally.count)
            report.figure(f"{name}_named_seconds", tally.seconds)
            report.figure(f"{name}_recovered_seconds", tally.recovered)
            limit = report.figure(f"{name}_named_of_limit_ratio", tally.of_limit)
            report.at_least(f"share of {tally.count} named rightly, {kind}, {program}", tally.right / tally.count, 1.0)
            report.at_most(f"latest name as part of the learned limit, {kind}, {program}", limit.maximum, 1.0)
            slowest = max(slowest, *tally.recovered)
    if "command" in parts:
        report_command(report, options)
    for kind in KINDS if "stock" in parts else ():
        named = torchrun_detects_fault(kind, slowest or STOCK_SECONDS)
        report.baseline(f"stock_{kind}_named_or_recovered_ratio", float(named))
    return report
