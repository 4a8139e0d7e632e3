"""H: a failed assertion, an illegal address and exhausted memory in a step: what the launcher reports of each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.launches import ALONE, LAUNCH, TASKS, TRAIN, Running
from bench.gpu_checks.tasks import FAULT, FAULT_ONCE, SUMS_FLAGS
from ddp_trainer.common.constants import Exit, File

EXPECTED: Final = {"assert": ("python_exception",), "address": ("gpu_fault",), "memory": ("gpu_oom", "gpu_fault")}
"""Fault → reasons that name it. A failed assertion of a kernel is a bug of the program, such as a bad index."""
RESTARTED: Final = "address"
"""Fault that happens once in another run, which may restart: the launcher tests the GPU in between."""


def run(bench: Bench) -> None:
    """Train into all faults at the same time, each in a separate process."""
    runs = {fault: _start(bench, fault, bench.folder(fault), restarts=0) for fault in EXPECTED}
    runs["restarted"] = _start(bench, RESTARTED, bench.folder("restarted"), restarts=1)
    try:
        codes = {name: training.wait(bench.seconds_left) for name, training in runs.items()}
    finally:
        for training in runs.values():
            training.close()
    for fault, reasons in EXPECTED.items():
        error = read_error(bench.directory / fault)
        code, reason = codes[fault], error.get("reason", "")
        message = str(error.get("message", "")).partition("\n")[0]
        bench.findings.require(f"{fault}: the run ended (exit code {code})", code not in {None, 0})
        bench.findings.require(f"{fault}: the reason {reason!r} is {' or '.join(reasons)}", reason in reasons)
        bench.findings.require(f"{fault}: it is not reported as a lost peer", code != Exit.RENDEZVOUS_LOST)
        bench.findings.require(f"{fault}: the message has CUDA's words ({message[:80]})", "CUDA" in message)
    code = codes["restarted"]
    bench.findings.require(f"{RESTARTED}: after a restart the run trains to its end (exit code {code})", code == 0)


def _start(bench: Bench, fault: str, folder: Path, *, restarts: int) -> Running:
    program = (*TRAIN, "--task", f"{TASKS}:Faulty", *SUMS_FLAGS, "--device", bench.device, "--max-steps", "20")
    variables = {FAULT: fault, FAULT_ONCE: str(folder / "happened") if restarts else ""}
    return Running([*LAUNCH, *ALONE, "--max-restarts", str(restarts), *program], DDP_RUN_DIR=str(folder), **variables)


def read_error(folder: Path) -> dict[str, Any]:
    """Return the first error of a run, or nothing."""
    try:
        return dict(json.loads((folder / File.FIRST_ERROR).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}
