"""Processes of a measurement end with ``python -m bench``, however that ends, unless they are marked to outlive it."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).resolve().parents[3]
MEASUREMENT: Final = """
import os, sys
from bench.descendants import OUTLIVES
from bench.harness import Report

VARIABLES = {}
SUMMARY = "starts a detached process"

def measure(options):
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writer, b"%d" % os.getpid())
            os.execve("/bin/sleep", ["sleep", "600"], VARIABLES)
        os._exit(0)
    os.wait()
    options.progress(f"{os.getpid()} {os.getppid()} {int(os.read(reader, 20))}")
    sys.stdin.read()
    return Report()
"""
BENCH: Final = """
import runpy, sys
from bench import measurements
measurements.__path__.append(sys.argv[1])
sys.argv = ["bench", "detaching"]
runpy.run_module("bench", run_name="__main__")
"""


def _ends(pidfd: int, *, seconds: float) -> bool:
    poll = select.poll()  # select() takes no descriptor above 1,023
    poll.register(pidfd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _bench(folder: Path, **how: bool) -> subprocess.Popen[str]:
    """Start the measurement in a folder."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    return subprocess.Popen([sys.executable, "-c", BENCH, str(folder)], cwd=ROOT, text=True, **pipes, **how)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param(lambda *_: None, 0, id="an orderly end"),
        pytest.param(lambda command, *_: os.killpg(command, signal.SIGINT), 130, id="Ctrl-C"),
        pytest.param(lambda command, *_: os.kill(command, signal.SIGKILL), -signal.SIGKILL, id="kill -9"),
        pytest.param(lambda command, *_: os.killpg(command, signal.SIGKILL), -signal.SIGKILL, id="kill -9 of all"),
        pytest.param(lambda _, measurement, __: os.kill(measurement, signal.SIGKILL), 137, id="out of memory"),
        pytest.param(lambda _, __, guardian: os.kill(guardian, signal.SIGKILL), 137, id="its guardian is killed"),
    ],
)
def test_a_detached_process_ends_with_its_bench(tmp_path: Path, end: Callable[..., None], code: int) -> None:
    (tmp_path / "detaching.py").write_text(MEASUREMENT)
    with _bench(tmp_path, start_new_session=True) as command:
        measurement, guardian, detached = map(int, command.stderr.readline().split())
        pidfd = os.pidfd_open(detached)
        end(command.pid, measurement, guardian)
        command.communicate(timeout=20)
    assert command.returncode == code
    assert _ends(pidfd, seconds=20), "it still runs"
    os.close(pidfd)


def test_a_process_of_the_cluster_goes_on_after_a_bench_that_has_started_it(tmp_path: Path) -> None:
    (tmp_path / "detaching.py").write_text(MEASUREMENT.replace("VARIABLES = {}", "VARIABLES = OUTLIVES"))
    with _bench(tmp_path) as command:
        pidfd = os.pidfd_open(int(command.stderr.readline().split()[2]))
        command.stdin.close()
        command.wait(timeout=20)  # what goes on still has its stderr
    assert command.returncode == 0
    assert not _ends(pidfd, seconds=0), "it has ended"
    signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)
