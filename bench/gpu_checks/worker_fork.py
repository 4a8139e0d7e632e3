"""B: workers that are forked from a process that has imported torch use CUDA; also where an import asked for it before.

A process that has called ``cuInit`` cannot fork workers that use CUDA. A module that calls ``cuda.is_available()`` when
it is imported may do so. Workers must then be started from nothing, and not fail.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.check_runner import children
from bench.gpu_checks.launches import ALONE, LAUNCH, Running
from bench.harness import CannotMeasure

KILLS: Final = 1
PRELOADS: Final[dict[str, tuple[str, ...]]] = {
    "plain": (),
    "asking": ("--preload", "bench.gpu_checks.cuda_query_on_import"),
}
PATIENCE_SECONDS: Final = 60.0
FORK_SERVER_WAIT_SECONDS: Final = 8.0
"""Longest wait for a ready fork server. Without one, the next worker starts as a new process.

Where the kernel does not show in what a process waits (gVisor), the whole time passes.
"""


def run(bench: Bench) -> None:
    """Kill a worker, with and without such a module."""
    with ThreadPoolExecutor() as pool:
        runs = {name: pool.submit(_restarts, bench, flags) for name, flags in PRELOADS.items()}
    for name, run_of in runs.items():
        results = run_of.result()
        right = sum(bool(result["right"]) for result in results)
        forked = sum(bool(result["forked"]) for result in results)
        bench.findings.add(f"{name}_forked_count", forked)
        bench.findings.at_least(f"{name}: workers whose matrix product is right, of {1 + KILLS}", right, 1 + KILLS)
        if name == "plain":
            bench.findings.at_least("plain: workers that were forked", forked, 1)


def _restarts(bench: Bench, flags: tuple[str, ...]) -> list[dict[str, Any]]:
    script = Path(__file__).with_name("fork_script.py")
    command = [*LAUNCH, *ALONE, "--max-restarts", "1000", *flags, str(script), bench.device]
    results: list[dict[str, Any]] = []
    with Running(command, DDP_FORK_SERVER="0.1") as running:
        for number in range(1 + KILLS):
            match = running.wait_for(rf'^{{"worker": .*"generation": {number + 1},.*', bench.bounded(PATIENCE_SECONDS))
            if match is None:
                raise CannotMeasure(f"worker {number + 1} did not compute: {running.output[-500:]}")
            results.append(json.loads(match[0]))
            if number == KILLS:
                break
            _await_fork_server(running, bench.bounded(FORK_SERVER_WAIT_SECONDS))
            os.kill(results[-1]["worker"], signal.SIGKILL)
    return results


def _await_fork_server(running: Running, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if any(_is_ready(pid) for pid in children(running.process.pid)):
            return
        time.sleep(0.05)


def _is_ready(pid: int) -> bool:
    """It is the fork server, and waits at its socket."""
    with contextlib.suppress(OSError):
        if b"fork_server_process.py" in Path(f"/proc/{pid}/cmdline").read_bytes():
            waits_in = Path(f"/proc/{pid}/wchan").read_text()
            return "unix" in waits_in or "recv" in waits_in
    return False
