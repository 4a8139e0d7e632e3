"""Thirteen checks on one GPU in at most ten minutes, each in a separate process with a time limit.

``python -m bench gpu`` needs a checkout, Python with torch, and no network. It writes ``build/gpu/report.json`` after
every check (``DDP_BENCH_GPU_DIR`` names another folder), and one line of JSON with all of them at the end. Without a
GPU, every check is reported as not run, and the exit code is 0. ``--only A,C`` runs some of the checks, and
``--quick`` takes small sizes. ``make gpu-report`` puts the report into docs/status.md.

``DDP_BENCH_GPU_DEVICE=cpu`` rehearses the checks on a machine without a GPU: CPU tensors and gloo take the place of
CUDA and NCCL. Such a report proves nothing about GPUs, and ``make gpu-report`` refuses it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.gpu_checks.check_report import Status
from bench.gpu_checks.check_runner import ROOT, command_of, environment, not_run, run_all
from bench.gpu_checks.registry import CHECKS, check_of
from bench.harness import Bar, CannotMeasure, Options, Report

SUMMARY = "thirteen checks on one NVIDIA GPU in ten minutes; without one, all are reported as not run"
PARTS: Final = tuple(check.letter for check in CHECKS)

DEVICES: Final = Path("/dev")
PROBE_SECONDS: Final = 60.0
REHEARSAL: Final = "rehearsal without a GPU: this shows nothing about GPUs"


def measure(options: Options) -> Report:
    """Run the checks and write the report."""
    directory = Path(os.environ.get("DDP_BENCH_GPU_DIR", ROOT / "build" / "gpu"))
    directory.mkdir(parents=True, exist_ok=True)
    checks = [check_of(letter) for letter in options.parts(PARTS)]
    machine = probe()
    device = os.environ.get("DDP_BENCH_GPU_DEVICE", "cuda")
    results: list[dict[str, Any]] = []

    def report_result(result: dict[str, Any]) -> None:
        results.append(result)
        options.progress(result_line(result))
        write(directory / "report.json", report_to_dict(machine, results, device=device, is_small=options.quick))

    if device == "cpu":
        options.progress(REHEARSAL)
    if device == "cuda" and not machine["gpu"]:
        for check in checks:
            report_result(not_run(check, reason_for_none(machine)))
        return report_of(results, machine, device, is_broken=has_device_files())
    run_all(
        checks,
        lambda check, seconds, file: command_of(
            check, device=device, is_small=options.quick, seconds=seconds, file=file
        ),
        directory,
        tell=report_result,
    )
    return report_of(results, machine, device, is_broken=False)


def probe() -> dict[str, Any]:
    """Return what the machine has, by :mod:`bench.gpu_checks.probe`.

    Raises:
        CannotMeasure: The probe does not end or prints no JSON, as with a driver in trouble.
    """
    command = [sys.executable, "-m", "bench.gpu_checks.probe"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=PROBE_SECONDS, check=False
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        raise CannotMeasure(f"The probe of the GPU did not end within {PROBE_SECONDS:g} s.") from None
    except (ValueError, IndexError):
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise CannotMeasure(f"The probe of the GPU ended with {done.returncode}: {last}") from None
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


def write(file: Path, report: Mapping[str, Any]) -> None:
    """Replace the report whole."""
    draft = file.with_suffix(".new")
    draft.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    draft.rename(file)


def report_to_dict(
    machine: Mapping[str, Any], results: Sequence[Mapping[str, Any]], *, device: str, is_small: bool
) -> dict[str, Any]:
    """Return the report as :mod:`bench.gpu_checks.report` reads it."""
    try:
        commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:  # no git, as where the checkout alone was copied
        commit = subprocess.CompletedProcess([], 1, stdout="")
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit.stdout.strip(),
        "device": device,
        "is_small": is_small,
        "machine": dict(machine),
        "checks": list(results),
    }


def report_of(
    results: Sequence[Mapping[str, Any]], machine: Mapping[str, Any], device: str, *, is_broken: bool
) -> Report:
    """Return all checks as one report: their bars, and a broken one for each check that did not end."""
    report = Report(details={"checks": list(results), "gpu": dict(machine), "device": device})
    for result in results:
        letter = result["check"]
        for bar in result["bars"]:
            figure = float("nan") if bar["figure"] is None else bar["figure"]
            report.bars.append(Bar(f"{letter}: {bar['what']}", figure, bar["bar"], bar["holds"], bar["relation"]))
        if result["status"] in {Status.TIMED_OUT, Status.CRASHED}:
            report.at_least(f"{letter}: came to its end ({result['reason']})", 0.0, 1.0)
    if is_broken:
        report.at_least("GPUs that CUDA can use", 0.0, 1.0)
    return report
