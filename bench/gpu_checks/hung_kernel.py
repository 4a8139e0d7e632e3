"""D: a process whose main thread waits for a kernel that does not end: what its other threads can still do.

The launcher's control thread, the handling of SIGTERM, and the bounded wait that decides whether a process may stay all
depend on it. On a CPU a call that sleeps without the GIL takes the place of the kernel.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Final

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.check_runner import ROOT, environment
from bench.gpu_checks.launches import PYTHON

STUCK_SECONDS: Final = 4.0
BOUND_SECONDS: Final = 1.0
CLOCK_HZ: Final = 2.0e9
"""No GPU's clock is far above; a kernel that ends later than planned changes nothing here."""
LONGEST_GAP_SECONDS: Final = 0.25
KILL_SECONDS: Final = 10.0
AFTER_SECONDS: Final = 30.0


def run(bench: Bench) -> None:
    """Start a stuck process, read what it measured, kill another one, and use the device again."""
    found = bench.findings
    measured = json.loads(_run_child(bench, "measure", bench.bounded(AFTER_SECONDS)).stdout.splitlines()[-1])
    found.add("stuck_seconds", measured["stuck"])
    found.at_least("seconds for which the main thread waited", measured["stuck"], 0.5 * STUCK_SECONDS)
    found.at_most("seconds of the longest gap of a thread beside it", measured["gap"], LONGEST_GAP_SECONDS)
    found.at_most("seconds until a thread received SIGTERM", measured["signal"], LONGEST_GAP_SECONDS)
    found.at_most("seconds of a synchronization that is bounded to 1 s", measured["bounded"], 1.5 * BOUND_SECONDS)
    found.require("the bounded synchronization reported that the device was busy", not measured["finished"])
    _kill(bench)


def _command(bench: Bench, what: str) -> list[str]:
    return [PYTHON, "-m", "bench.gpu_checks.hung_kernel", bench.device, what]


def _run_child(bench: Bench, what: str, seconds: float) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        _command(bench, what), cwd=ROOT, env=environment(), capture_output=True, text=True, timeout=seconds, check=True
    )


def _kill(bench: Bench) -> None:
    """SIGKILL while a kernel runs: the process goes, and the device can be used."""
    with subprocess.Popen(
        _command(bench, "wait"), cwd=ROOT, env=environment(), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.5)  # the kernel runs
        begun = time.monotonic()
        process.kill()
        process.wait()
    bench.findings.at_most("seconds until a killed process is gone", time.monotonic() - begun, KILL_SECONDS)
    begun = time.monotonic()
    _run_child(bench, "use", bench.bounded(AFTER_SECONDS))
    bench.findings.add("device_used_again_seconds", time.monotonic() - begun)


def keep_device_busy(device: str) -> None:
    """Keep the device busy for some seconds; return when it is done, the GIL free meanwhile."""
    if device == "cuda":
        import torch

        torch.cuda._sleep(int(STUCK_SECONDS * CLOCK_HZ))  # noqa: SLF001 - torch has no public kernel that is slow
        torch.zeros(1, device=device).tolist()
    else:
        end = time.monotonic() + STUCK_SECONDS
        while (left := end - time.monotonic()) > 0:  # a signal ends the call
            ctypes.CDLL(None).usleep(int(left * 1e6))


def measure(device: str) -> dict[str, float]:
    """Measure from threads what happens while the main thread is stuck."""
    measured: dict[str, float] = {}
    is_over, wakes = threading.Event(), os.pipe2(os.O_NONBLOCK)
    os.set_blocking(wakes[0], True)
    signal.signal(signal.SIGTERM, lambda *_: None)
    signal.set_wakeup_fd(wakes[1], warn_on_full_buffer=False)

    def measure_gap() -> None:
        last, longest = time.monotonic(), 0.0
        while not is_over.wait(0.01):
            now = time.monotonic()
            last, longest = now, max(longest, now - last)
        measured["gap"] = longest

    def measure_sigterm() -> None:
        time.sleep(1.0)
        begun = time.monotonic()
        os.kill(os.getpid(), signal.SIGTERM)
        os.read(wakes[0], 1)
        measured["signal"] = time.monotonic() - begun
        begun = time.monotonic()
        measured["finished"] = float(synchronize_with_timeout(device, BOUND_SECONDS))
        measured["bounded"] = time.monotonic() - begun

    threads = [threading.Thread(target=function) for function in (measure_gap, measure_sigterm)]
    warm_up(device)
    for thread in threads:
        thread.start()
    begun = time.monotonic()
    keep_device_busy(device)
    measured["stuck"] = time.monotonic() - begun
    is_over.set()
    for thread in threads:
        thread.join()
    return measured


def synchronize_with_timeout(device: str, seconds: float) -> bool:
    """Wait for the device in another thread for so many seconds at most; whether it came to an end."""

    def wait() -> None:
        if device == "cuda":
            import torch

            torch.cuda.synchronize()
        else:
            ctypes.CDLL(None).usleep(int(STUCK_SECONDS * 1e6))

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def warm_up(device: str) -> None:
    """Make the context."""
    import torch

    torch.ones(2, 2, device=device).sum().item()


def main() -> int:
    """Be one of the processes of this check."""
    device, what = sys.argv[1:]
    if what == "measure":
        print(json.dumps(measure(device)), flush=True)
    elif what == "use":
        warm_up(device)
    else:
        warm_up(device)
        print("ready", flush=True)
        for _ in itertools.count():
            keep_device_busy(device)
    return 0


if __name__ == "__main__":
    sys.exit(main())
