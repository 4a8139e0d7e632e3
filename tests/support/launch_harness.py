"""Real launchers and stores as processes, with their output as lines that a test can wait for."""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Self

import pytest

import bench
from ddp_trainer.common.constants import Env
from ddp_trainer.launch.in_worker.profile import heartbeat_page
from ddp_trainer.process.process_tree import children_of
from tests.support.fork_server_defaults import NOT_LATER
from tests.support.ports import free_port

LAUNCH = [sys.executable, "-m", "ddp_trainer", "launch"]
STORE = [sys.executable, "-m", "ddp_trainer", "store"]
PATIENCE_SECONDS = 120.0
"""Timeout for an expected event, long enough for a machine under load."""

LOOP = """
import os, signal, sys, time
rank, generation, world = (os.environ[name] for name in ("RANK", "DDP_GENERATION", "WORLD_SIZE"))
def say(words):  # in one piece, which a pipe keeps apart from what launcher and other ranks write
    os.write(1, f"{words}\\n".encode())
def stop(*_):
    say(f"rank={rank} generation={generation} stops")
    sys.exit(143)
signal.signal(signal.SIGTERM, stop)
say(f"rank={rank} generation={generation} world={world} pid={os.getpid()} runs")
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
say(f"rank={rank} generation={generation} done restarts={os.environ['DDP_RESTARTS']}")
"""
"""A worker that runs until a file exists, and leaves in good order on SIGTERM."""


class Running:
    """One process and its output so far.

    Unless a test sets ``DDP_FORK_SERVER``, a launcher starts its fork server before its workers or never.
    """

    def __init__(self, command: list[str], env: dict[str, str] | None = None, cwd: Path | None = None) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PET_", "DDP_", "TORCHEL"))}
        self.process = subprocess.Popen(
            command,
            env={**clean, Env.FORK_SERVER: NOT_LATER, **(env or {})},
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self.lines.append("")
            self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def output(self) -> str:
        return "\n".join(self.lines)

    def line(self, pattern: str, *, after: int = 0) -> re.Match[str]:
        """The first line that matches, when it comes; so many lines are not looked at."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        seen = after
        with self._changed:
            while True:
                for text in self.lines[seen:]:
                    if match := re.search(pattern, text):
                        return match
                seen = len(self.lines)
                ended = not self._reader.is_alive()
                if ended or not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise AssertionError(f"no line matched {pattern!r} in:\n{self.output}")

    def send(self, which: signal.Signals) -> None:
        self.process.send_signal(which)

    def code(self, seconds: float = PATIENCE_SECONDS) -> int:
        """Its return code, when it has ended and all was read."""
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"did not end:\n{self.output}") from None
        self._reader.join(PATIENCE_SECONDS)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join(5)
        if not self._reader.is_alive() and self.process.stdout:
            self.process.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def secret_file(folder: Path) -> Path:
    """A file with a new secret for a run, beside a folder."""
    file = folder.with_name(f"{folder.name}.run-secret")
    file.touch(0o600)
    file.write_text(f"{secrets.token_hex(32)}\n")
    return file


class Stage:
    """Starts processes for one test, and ends them with it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.secret_file = secret_file(folder)
        self._running: list[Running] = []

    def run(self, command: list[str], env: dict[str, str] | None = None, cwd: Path | None = None) -> Running:
        running = Running(command, {"DDP_SECRET_FILE": str(self.secret_file), **(env or {})}, cwd)
        self._running.append(running)
        return running

    def script(self, text: str, name: str = "script.py") -> str:
        path = self.folder / name
        path.write_text(text)
        return str(path)

    def launch(self, *arguments: str, **env: str) -> Running:
        return self.run([*LAUNCH, *arguments], env)

    def store(self, *arguments: str) -> Running:
        store = self.run([*STORE, "--port", str(self.port), "--first-seconds", "0.5", *arguments])
        store.line("listening")
        return store

    def agent(self, index: int, *arguments: str, nnodes: str = "2", restarts: int = 3, **env: str) -> Running:
        flags = ["--rdzv-backend", "ddp", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--rdzv-id", "run"]
        command = [*LAUNCH, "--nnodes", nnodes, "--max-restarts", str(restarts), *flags, *arguments]
        return self.run(command, {"DDP_POD_NAME": f"worker-{index}", **env})

    def done(self) -> str:
        """A file that ends :data:`LOOP` when it exists."""
        return str(self.folder / "done")

    def finish(self) -> None:
        Path(self.done()).touch()

    def close(self) -> None:
        for running in reversed(self._running):
            running.close()


def stage_of(folder: Path) -> Iterator[Stage]:
    stage = Stage(folder)
    try:
        yield stage
    finally:
        stage.close()


@pytest.fixture(name="stage")
def stage_fixture(tmp_path: Path) -> Iterator[Stage]:
    """Starts the processes of one test."""
    yield from stage_of(tmp_path)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Poll a condition that has no event to wait for."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # gone before the open, or between it and the read
        return False


def worker_pid(launcher: int, local_rank: int) -> int:
    """The worker with this local rank, by the heartbeat page that it has open."""
    for pid in children_of(launcher):
        with suppress(FileNotFoundError, ProcessLookupError):  # a child that came and went
            if heartbeat_page(Path(f"/proc/{pid}"), local_rank):
                return pid
    raise AssertionError(f"launcher {launcher} has no worker with local rank {local_rank}")


SCRIPTS = Path(__file__).resolve().parents[1] / "scripts"
HANGING = Path(bench.__file__).parent / "scripts" / "hanging_ddp.py"


def order_fault(folder: Path, rank: int, kind: str) -> None:
    """Let a rank of :data:`HANGING`, whose ``TROUBLE`` is this folder, have a fault in its next step."""
    unread = folder / "unread"
    unread.write_text(kind)
    unread.replace(folder / f"rank-{rank}")


def run_and_kill(stage: Stage, script: str, epochs: int) -> Running:
    """Run one of the scripts that know nothing of us on two ranks; kill rank 1 when some epochs are done."""
    flags = ["--nproc-per-node", "2", "--max-restarts", "1", str(SCRIPTS / script)]
    run = stage.launch(*flags, "--epochs", str(epochs), "--output", str(stage.folder), OMP_NUM_THREADS="1")
    run.line(r"^epoch 1 ")
    os.kill(worker_pid(run.pid, 1), signal.SIGKILL)
    return run


def check_recovered(run: Running, epochs: int) -> None:
    """Assert that the run resumed from its checkpoint and did every epoch once."""
    assert run.code() == 0, run.output
    resumed = int(run.line(r"resuming .*epoch (\d+)")[1])
    assert resumed >= 2, run.output
    assert f"epoch {epochs - 1} " in run.output
    done = [int(number) for number in re.findall(r"^epoch (\d+) ", run.output, re.MULTILINE)]
    assert sorted(set(done)) == list(range(epochs))
    assert run.lines[-2] == "ddp-launch: Restarts by cause: failure 1."
