"""Checks of one GPU within a budget, each in a separate process with a time limit.

``python -m bench gpu --budget 480 --out DIR`` needs a checkout, Python with torch, and no network. It prints a line of
JSON when a check starts and when it ends, and a line with ``summary`` at the end. ``DIR`` (``build/gpu``) holds
``report.json`` and ``logs.tar``, replaced after each check, and ``all.log``. Without a GPU, every check is reported as
not run, and the exit code is 0. ``--only A,C`` runs some of the checks, and ``--quick`` takes small sizes. Where no
``.git`` is, ``DDP_BENCH_COMMIT`` names the commit. ``make gpu-report`` puts the report into docs/status.md.

``DDP_BENCH_GPU_DEVICE=cpu`` rehearses the checks on a machine without a GPU: CPU tensors and gloo take the place of
CUDA and NCCL. Such a report proves nothing about GPUs, and ``make gpu-report`` refuses it.
"""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.gpu_checks.check_report import Status
from bench.gpu_checks.check_runner import ROOT, command_of, environment, not_run, run_phases
from bench.gpu_checks.registry import BUDGET_SECONDS, CHECKS, Check, check_of
from bench.harness import CannotMeasure, Options, Report

SUMMARY = "checks on one NVIDIA GPU in eight minutes; without one, all are reported as not run"
PARTS: Final = tuple(check.letter for check in CHECKS)
HAS_BUDGET: Final = True

DEVICES: Final = Path("/dev")
GPU_PROBE: Final = ROOT / "trainer" / "ddp_trainer" / "process" / "gpu_probe.py"
"""Run by its path: the packages of the checkout need not be installed."""
PROBE_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 10.0
"""Time limit of a small copy on the GPU between checks."""
OVERTIME_SECONDS: Final = 15.0
"""Time after the budget at which this process ends, whatever hangs."""
MOST_FIGURES: Final = 12
LINE_LETTERS: Final = 700
REHEARSAL: Final = "rehearsal without a GPU: this shows nothing about GPUs"


def measure(options: Options) -> Report:
    """Run the checks and write the report."""
    begun = time.monotonic()
    budget = options.budget_seconds or BUDGET_SECONDS
    device = os.environ.get("DDP_BENCH_GPU_DEVICE", "cuda")
    checks = [check_of(letter) for letter in options.parts(PARTS)]
    run = GpuRun(options, options.out or ROOT / "build" / "gpu", device, checks)
    overtime = threading.Timer(budget + OVERTIME_SECONDS, run.abort_run)
    overtime.daemon = True
    overtime.start()
    try:
        return _run_checks(run, begun + budget)
    finally:
        overtime.cancel()
        overtime.join()


def _run_checks(run: GpuRun, end: float) -> Report:
    """Run all checks until ``end``, a time by ``time.monotonic``."""
    run.machine = probe()
    if run.device == "cpu":
        run.log(REHEARSAL)
    if run.device == "cuda" and not run.machine["gpu"]:
        for check in run.checks:
            run.take(not_run(check, reason_for_none(run.machine)))
        return run.report(is_broken=has_device_files())
    with tempfile.TemporaryDirectory(prefix="bench-gpu-", ignore_cleanup_errors=True) as name:
        run.files = Path(name)

        def command(check: Check, seconds: float, file: Path) -> list[str]:
            return command_of(check, device=run.device, is_small=run.options.quick, seconds=seconds, file=file)

        answers = can_use_gpu if run.device == "cuda" else lambda: True
        run_phases(run.checks, command, run.files, emit=run.take, end=end, answers=answers)
    return run.report(is_broken=False)


@dataclass(slots=True)
class GpuRun:
    """Results of the checks that have ended, and the files that hold them."""

    options: Options
    folder: Path
    device: str
    checks: Sequence[Check] = ()
    machine: dict[str, Any] = field(default_factory=dict)
    files: Path | None = None
    """Folder of the logs of checks."""
    results: list[dict[str, Any]] = field(default_factory=list)
    exit_now: Callable[[int], Any] = os._exit

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "all.log").write_text("", encoding="utf-8")

    def log(self, line: str) -> None:
        """Print a line to stderr and to ``all.log``."""
        self.options.progress(line)
        with (self.folder / "all.log").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def take(self, result: dict[str, Any]) -> None:
        """Report a check that has started or ended, and replace the files after its end."""
        if result["status"] == "started":
            self.options.emit(result)
            return
        self.results.append(result)
        self.options.emit(short_result(result))
        self.log(result_line(result))
        _replace(self.folder / "report.json", (json.dumps(self.as_dict(), indent=1) + "\n").encode())
        _replace(self.folder / "logs.tar", self._packed_logs())

    def _packed_logs(self) -> bytes:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for file in sorted(self.files.glob("*.log")) if self.files else []:
                archive.add(file, file.name)
        return packed.getvalue()

    def as_dict(self) -> dict[str, Any]:
        """Return the report as :mod:`bench.gpu_checks.report` reads it."""
        return {
            "date": time.strftime("%Y-%m-%d", time.gmtime()),
            "commit": current_commit(),
            "device": self.device,
            "is_small": self.options.quick,
            "machine": self.machine,
            "checks": self.results,
        }

    def summary(self) -> dict[str, str]:
        """Return the status of each check that has ended."""
        return {result["check"]: str(result["status"]) for result in self.results}

    def abort_run(self) -> None:
        """End this process immediately, because a check does not end."""
        self.log("The budget was used up, and a check does not end.")
        for check in self.checks:
            if check.letter not in self.summary():
                self.take(not_run(check, "it or a check before it did not end"))
        self.options.emit({"bench": "gpu", "summary": self.summary(), "ended": "the budget was used up"})
        self.exit_now(1)

    def report(self, *, is_broken: bool) -> Report:
        """Return one bar for each check that ran, and a broken one if CUDA cannot use the GPU."""
        report = Report(details={"summary": self.summary(), "gpu": self.machine.get("gpu", ""), "device": self.device})
        for result in self.results:
            if result["status"] not in {Status.NOT_RUN, Status.NOT_SUPPORTED}:
                passed = result["status"] in {Status.PASSED, Status.PARTIAL}
                report.at_least(f"{result['check']}: {result['status']}", float(passed), 1.0)
        if is_broken:
            report.at_least("GPUs that CUDA can use", 0.0, 1.0)
        return report


def short_result(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return what one line of JSON holds of a result: at most 700 characters."""
    short: dict[str, Any] = {
        "check": result["check"],
        "status": result["status"],
        "seconds": result["seconds"],
        "figures": {},
        "failed": [bar["what"][:80] for bar in result["bars"] if not bar["holds"]][:3],
        "log": (result["reason"] or result["log"])[-120:],
    }
    for name, value in list(result["figures"].items())[:MOST_FIGURES]:
        figures = short["figures"] | {name: None if value is None else float(f"{value:.4g}")}
        if len(json.dumps(short | {"figures": figures})) > LINE_LETTERS:
            break
        short["figures"] = figures
    return short


def can_use_gpu() -> bool:
    """Return whether another process can compute on the GPU within 10 s."""
    process = subprocess.Popen([sys.executable, "-I", str(GPU_PROBE), "libcuda.so.1"], start_new_session=True)
    try:
        return process.wait(ANSWER_SECONDS) == 0
    except subprocess.TimeoutExpired:
        process.kill()  # without a wait: it may be stuck in the driver
        return False


def current_commit() -> str:
    """Return the commit of the checkout, or that which ``DDP_BENCH_COMMIT`` names; empty where neither is known."""
    if named := os.environ.get("DDP_BENCH_COMMIT"):
        return named
    try:
        done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:  # no git
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _replace(file: Path, content: bytes) -> None:
    draft = file.with_suffix(".new")
    draft.write_bytes(content)
    draft.rename(file)


def probe() -> dict[str, Any]:
    """Return what the machine has, by :mod:`bench.gpu_checks.probe`.

    Raises:
        CannotMeasure: The probe does not end or prints no JSON, as with a driver in trouble.
    """
    command = [sys.executable, "-m", "bench.gpu_checks.probe"]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        output, errors = process.communicate(timeout=PROBE_SECONDS)
        found = json.loads(output.splitlines()[-1])
    except subprocess.TimeoutExpired:
        process.kill()  # without a wait: it may be stuck in the driver
        raise CannotMeasure(f"The probe of the GPU did not end within {PROBE_SECONDS:g} s.") from None
    except (ValueError, IndexError):
        last = (errors.strip().splitlines() or ["no output"])[-1]
        raise CannotMeasure(f"The probe of the GPU ended with {process.returncode}: {last}") from None
    return dict(found)


def has_device_files(folder: Path | None = None) -> bool:
    """True if the driver has made device files of GPUs."""
    return any((folder or DEVICES).glob("nvidia[0-9]*"))


def reason_for_none(machine: Mapping[str, Any]) -> str:
    """Return why no check runs: the GPU is missing, or CUDA cannot use it."""
    if has_device_files():
        return f"a GPU is there, and CUDA cannot use it: {machine['trouble']}"
    return "no GPU"


def result_line(result: Mapping[str, Any]) -> str:
    """Return one line about a check.

    >>> result_line({"check": "A", "title": "facts", "status": "not run", "reason": "no GPU", "seconds": 0.0})
    'A facts: not run: no GPU'
    >>> result_line({"check": "A", "title": "facts", "status": "passed", "reason": "", "seconds": 3.2})
    'A facts: passed (3.2 s)'
    """
    seconds = f" ({result['seconds']} s)" if result["seconds"] else ""
    why = f": {result['reason']}" if result["reason"] else ""
    return f"{result['check']} {result['title']}: {result['status']}{why}{seconds}"
