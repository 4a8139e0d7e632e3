"""Run checks, each in a separate process with a time limit.

Standard library only: torch is imported by the checks, so that no fault of theirs, and no fault of the GPU, ends this
process. What a killed check leaves behind is killed too.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench.gpu_checks.check_report import Status
from bench.gpu_checks.registry import BUDGET_SECONDS, LEAST_SECONDS, Check

ROOT: Final = Path(__file__).resolve().parents[2]
_PR_SET_CHILD_SUBREAPER: Final = 36
_LONGEST_REASON: Final = 300
_CLEAN_UP_SECONDS: Final = 10.0
"""Time limit for killing orphaned processes. A process that waits for a driver may die late."""


def environment() -> dict[str, str]:
    """Return the variables of a check: ours, with the packages of this checkout on the path, and no launcher's."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("DDP_", "PET_", "TORCHELASTIC_")) and name not in {"RANK", "WORLD_SIZE", "LOCAL_RANK"}
    }
    places = [str(ROOT), str(ROOT / "trainer"), str(ROOT / "kubectl_plugin"), os.environ.get("PYTHONPATH", "")]
    return kept | {
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
    others = set(children(os.getpid()))
    with subreaper(), log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
        try:
            code: int | None = process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            clean_up(process, others)
    found = _read(file)
    status, reason = _check_status(code, found, seconds, log)
    return {
        "check": check.letter,
        "title": check.title,
        "status": status,
        "reason": reason,
        "seconds": round(time.monotonic() - begun, 1),
        **_parts_of(found),
    }


def not_run(check: Check, reason: str) -> dict[str, Any]:
    """Return the part of the report of a check that was not started."""
    return {
        "check": check.letter,
        "title": check.title,
        "status": Status.NOT_RUN,
        "reason": reason,
        "seconds": 0.0,
        **_parts_of({}),
    }


def _parts_of(found: Mapping[str, Any]) -> dict[str, Any]:
    empty: dict[str, Any] = {"figures": {}, "bars": [], "unsupported": {}, "details": {}}
    return {part: found.get(part, nothing) for part, nothing in empty.items()}


def run_all(
    checks: Sequence[Check],
    command: Callable[[Check, float, Path], Sequence[str]],
    directory: Path,
    *,
    tell: Callable[[dict[str, Any]], None],
    budget_seconds: float = BUDGET_SECONDS,
) -> list[dict[str, Any]]:
    """Run the checks in their order, each with the rest of the budget at most.

    Args:
        checks: What to run.
        command: The command line of a check that has so many seconds and this file.
        directory: Where files and logs of checks go.
        tell: Called with the result of each check when the check has ended.
        budget_seconds: Wall time of all checks.
    """
    directory.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + budget_seconds
    results = []
    for check in checks:
        seconds = min(check.limit_seconds, end - time.monotonic())
        if seconds < min(LEAST_SECONDS, check.limit_seconds):
            result = not_run(check, f"the {budget_seconds:g} s of this bench were used up")
        else:
            file = directory / f"{check.letter}.json"
            result = run_check(check, command(check, seconds, file), seconds, file)
        results.append(result)
        tell(result)
    return results


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
    if broken:
        return Status.FAILED, "; ".join(broken)[:_LONGEST_REASON]
    return Status.PASSED, ""


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


@contextlib.contextmanager
def subreaper() -> Iterator[None]:
    """Be the parent of processes whose own parent is killed, so that they can be found and killed too."""
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


def clean_up(process: subprocess.Popen[bytes], others: set[int]) -> None:
    """Kill a process and all below it, workers with sessions of their own too: who loses its parent becomes our child.

    Args:
        process: What was started.
        others: Children of this process that have nothing to do with it.
    """
    process.kill()
    process.wait()
    deadline = time.monotonic() + _CLEAN_UP_SECONDS
    while (orphans := set(children(os.getpid())) - others) and time.monotonic() < deadline:
        for each in orphans:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(each, signal.SIGKILL)
                os.waitpid(each, os.WNOHANG)
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """Return the direct children of a process, by the parent that each process has: not every kernel lists children."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found
