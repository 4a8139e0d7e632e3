"""Run checks in phases, each in a separate process with a time limit, within one budget.

Standard library only: torch is imported by the checks, so that no fault of theirs, and no fault of the GPU, ends this
process. What a killed check leaves behind is killed too. No wait is without a limit, because a process that waits for
the driver cannot be killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, Final

from bench.gpu_checks.check_report import Status
from bench.gpu_checks.registry import Check

ROOT: Final = Path(__file__).resolve().parents[2]
OWNER: Final = "BENCH_GPU_OWNER"
"""Variable of all processes of a check, those in sessions of their own too."""
SUMMARY_SECONDS: Final = 10.0
"""Part of the budget that no check gets."""
KILL_SECONDS: Final = 5.0
"""Time limit for killing the processes of a check."""
STUCK: Final[list[subprocess.Popen[bytes]]] = []
"""Processes that could not be killed; nothing waits for them."""
_LONGEST_REASON: Final = 300

Command = Callable[[Check, float, Path], Sequence[str]]
"""The command line of a check that has so many seconds and writes this file."""


def environment() -> dict[str, str]:
    """Return the variables of a check: ours, with the packages of this checkout on the path, and no launcher's."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DDP_", "PET_", "TORCHELASTIC_")) and name not in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}
    }
    places = [str(ROOT), str(ROOT / "trainer"), str(ROOT / "kubectl_plugin"), os.environ.get("PYTHONPATH", "")]
    return inherited | {
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "PYTHONUNBUFFERED": "1",
        # All ranks are on this machine, which may have no other interface and no name that resolves.
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
    }


def command_of(check: Check, *, device: str, is_small: bool, seconds: float, file: Path) -> list[str]:
    """Return the command line of a check."""
    return [
        *(sys.executable, "-m", "bench.gpu_checks.child", check.letter, "--device", device),
        *("--file", str(file), "--seconds", f"{seconds:.1f}", *(["--small"] if is_small else [])),
    ]


def run_check(check: Check, command: Sequence[str], seconds: float, file: Path) -> dict[str, Any]:
    """Run one check to its end or its limit, and return its part of the report."""
    begun = time.monotonic()
    file.unlink(missing_ok=True)
    log = file.with_suffix(".log")
    owner = f"{os.getpid()}-{check.letter}-{file}"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment() | {OWNER: owner},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        is_gone = end_processes(process, owner)
    found = _read(file)
    status, reason = _check_status(code, found, seconds, log)
    if not is_gone:
        STUCK.append(process)
        status, reason = Status.STUCK, f"its processes are alive {KILL_SECONDS:g} s after SIGKILL"
    return {
        "check": check.letter,
        "title": check.title,
        "status": status,
        "reason": reason,
        "seconds": round(time.monotonic() - begun, 1),
        "log": last_line(log),
        **_parts_of(found),
    }


def end_processes(process: subprocess.Popen[bytes], owner: str) -> bool:
    """Kill all processes of a check, and return whether they are gone within the time limit."""
    deadline = time.monotonic() + KILL_SECONDS
    while True:
        process.poll()
        alive = processes_of(owner)
        if not alive and process.returncode is not None:
            return True
        if time.monotonic() > deadline:
            return False
        for pid in {*alive, *([] if process.returncode is not None else [process.pid])}:
            with contextlib.suppress(ProcessLookupError):
                kill_process(pid)
        time.sleep(0.02)


def kill_process(pid: int) -> None:
    """Send SIGKILL."""
    os.kill(pid, signal.SIGKILL)


def processes_of(owner: str) -> list[int]:
    """Return the processes that a check has started, directly or not."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"{OWNER}={owner}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def not_run(check: Check, reason: str) -> dict[str, Any]:
    """Return the part of the report of a check that was not started."""
    return {
        "check": check.letter,
        "title": check.title,
        "status": Status.NOT_RUN,
        "reason": reason,
        "seconds": 0.0,
        "log": "",
        **_parts_of({}),
    }


def _parts_of(found: Mapping[str, Any]) -> dict[str, Any]:
    empty: dict[str, Any] = {"figures": {}, "bars": [], "unsupported": {}, "details": {}}
    return {part: found.get(part, nothing) for part, nothing in empty.items()}


def limits_of(checks: Sequence[Check], seconds: float) -> dict[str, float]:
    """Return how long each check may take, so that all phases together fit into so many seconds.

    Where they do not fit, the phase whose most valuable check has the least value gets less: first the least with which
    its checks start, and then nothing.
    """
    phases = {check.phase: [other for other in checks if other.phase == check.phase] for check in checks}
    room = {phase: max(check.limit_seconds for check in group) for phase, group in phases.items()}
    least = {phase: max(check.least_seconds for check in group) for phase, group in phases.items()}
    worst_first = sorted(phases, key=lambda phase: -min(check.value for check in phases[phase]))
    for floors in (least, dict.fromkeys(phases, 0.0)):
        for phase in worst_first:
            excess = sum(room.values()) - seconds
            if excess > 0:
                room[phase] = max(min(floors[phase], room[phase]), room[phase] - excess)
    return {check.letter: min(check.limit_seconds, room[check.phase]) for check in checks}


def run_phases(
    checks: Sequence[Check],
    command: Command,
    directory: Path,
    *,
    emit: Callable[[dict[str, Any]], None],
    end: float,
    answers: Callable[[], bool] = lambda: True,
) -> None:
    """Run phase after phase, the checks of a phase at the same time.

    Args:
        checks: What to run.
        command: Command line of a check.
        directory: Where files and logs of checks go.
        emit: Called when a check starts and with its result, from this thread alone.
        end: Time by ``time.monotonic`` at which the budget is used up.
        answers: Returns whether the GPU computes. Called before the phases that need it.
    """
    status_of: dict[str, str] = {}
    is_answering = True
    letters = {check.letter for check in checks}
    for phase in sorted({check.phase for check in checks}):
        group = [check for check in checks if check.phase == phase]
        if is_answering and any(check.probes for check in group):
            is_answering = answers()
        rest = [check for check in checks if check.phase >= phase]
        limits = limits_of(rest, end - SUMMARY_SECONDS - time.monotonic())
        started: list[Check] = []
        for check in group:
            reason = _skip_reason(check, limits[check.letter], status_of if check.after in letters else None)
            if not is_answering:
                reason = "the GPU does not answer"
            if reason:
                status_of[check.letter] = Status.NOT_RUN
                emit(not_run(check, reason))
            else:
                started.append(check)
                emit({"check": check.letter, "status": "started"})
        with ThreadPoolExecutor(max(1, len(started))) as pool:
            running = []
            for check in started:
                seconds, file = limits[check.letter], directory / f"{check.letter}.json"
                running.append(pool.submit(run_check, check, command(check, seconds, file), seconds, file))
            for future in as_completed(running):
                result = future.result()
                status_of[result["check"]] = result["status"]
                emit(result)


def _skip_reason(check: Check, seconds: float, status_of: Mapping[str, str] | None) -> str:
    """Why a check is not started; empty if it is. Without statuses it depends on no other check."""
    if status_of is not None and status_of.get(check.after) != Status.PASSED:
        return f"check {check.after} did not pass"
    return "" if seconds >= check.least_seconds else f"{max(seconds, 0.0):.0f} s of the budget were left for it"


def _check_status(code: int | None, found: Mapping[str, Any], seconds: float, log: Path) -> tuple[Status, str]:
    if code is None:
        return Status.TIMED_OUT, f"it did not end within {seconds:.0f} s"
    if code != 0:
        what = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return Status.CRASHED, f"{what}: {last_line(log)}"
    if "reason" in found:
        return Status.NOT_SUPPORTED, str(found["reason"])
    if not found.get("bars"):
        return Status.CRASHED, "it ended without a result"
    broken = [bar["what"] for bar in found["bars"] if not bar["holds"]]
    skipped = found.get("unsupported")
    status = Status.FAILED if broken else Status.PARTIAL if skipped else Status.PASSED
    reason = "; ".join(broken) if broken or not skipped else f"without {'; '.join(skipped)}"
    return status, reason[:_LONGEST_REASON]


def last_line(log: Path) -> str:
    """Return the last line with words of a log, in at most 300 characters."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line), "no output")[:_LONGEST_REASON]


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def children(pid: int) -> list[int]:
    """Return the direct children of a process, by the parent that each process has: not every kernel lists children."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found
