"""When a zygote is started, and started again: by real processes, whose torch is an empty module."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from ddp_trainer.launch.workers.fork_server_start import MOST_LOOKS, ZygoteWatch
from ddp_trainer.launch.workers.worker_group import Program, Workers

EMPTY_TORCH = "class cuda: is_initialized = staticmethod(bool)"
THREAD = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"

AGENT = """
import asyncio, os, pathlib, select, signal, sys
from ddp_trainer.launch.workers.children import Children
from ddp_trainer.launch.workers.fork_server import ForkServer

async def main():
    children = Children(asyncio.get_running_loop())
    zygote = ForkServer(children, sys.executable, (), os.environ)
    {body}
    zygote.stop()

asyncio.run(main())
"""
READY = """
    while not zygote._poll_ready():
        await asyncio.sleep(0.01)
"""


def agent(tmp_path: Path, body: str, torch: str = EMPTY_TORCH) -> str:
    """What an agent prints that does this with its zygote."""
    (tmp_path / "torch.py").write_text(torch)
    (tmp_path / "starts_thread.py").write_text(f"print(file=open({str(tmp_path / 'asked')!r}, 'a'))\n{THREAD}")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-c", AGENT.replace("{body}", body.strip())]
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60, env=environment)
    return done.stdout


def test_where_what_was_learnt_starts_a_thread_the_next_zygote_does_without_it_at_once(tmp_path: Path) -> None:
    imports = tmp_path / "imports"
    imports.write_text("starts_thread")
    agent(tmp_path, f"zygote.start(pathlib.Path({str(imports)!r}))" + READY)
    assert (tmp_path / "asked").read_text().count("\n") == 1


def test_a_zygote_that_keeps_dying_is_not_started_for_ever(tmp_path: Path) -> None:
    body = """
    for _ in range(9):
        zygote.start()
        print(zygote._control is not None)
        while zygote._control:
            await asyncio.sleep(0.01)
        zygote.stop_if_importing(has_time=False)
    """
    told = agent(tmp_path, body, torch="raise SystemExit(1)")
    assert told.split() == ["True"] * 3 + ["False"] * 6


def test_an_importing_zygote_gives_way_to_workers_once(tmp_path: Path) -> None:
    body = """
    for _ in range(3):
        zygote.start()
        zygote.stop_if_importing(has_time=False)
        print(zygote._control is not None)
    """
    told = agent(tmp_path, body, torch="import time; time.sleep(100)")
    assert told.split() == ["False", "True", "True"]


def test_a_fork_that_is_killed_before_its_release_is_reported_as_dead(tmp_path: Path) -> None:
    body = """
    zygote.start()
    while not zygote._poll_ready():
        await asyncio.sleep(0.01)
    ended = asyncio.get_running_loop().create_future()
    pid = zygote.fork({}, 1, 2, 1)
    children.add_child_handler(pid, ended.set_result)
    os.kill(pid, signal.SIGKILL)
    gate = select.poll()
    gate.register(zygote._gate, 0)  # until the fork server has closed its copy too
    gate.poll()
    zygote.release()
    print(await ended)
    """
    assert agent(tmp_path, body).split() == [str(-signal.SIGKILL)]


class Importing:
    """Workers that have torch in their memory, and have imported nothing else yet."""

    supports_fork_server = True

    def __init__(self) -> None:
        self.has_zygote = asyncio.Event()

    def have_torch(self) -> bool:
        return True

    def prepare_restart(self, imports: Path | None) -> None:
        self.has_zygote.set()


def looks_until_zygote(*, starts: int) -> int:
    """How often workers are looked at, from their last start on, until there is a zygote; none tells its imports."""

    async def begin() -> int:
        workers = Importing()
        watch = ZygoteWatch(cast("Any", workers), 0.01, lambda: None)
        for _ in range(starts):
            watch.begin(anew=True)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Counting)
        before = loop.timers
        await workers.has_zygote.wait()
        return loop.timers - before + 1

    loop = Counting()
    try:
        return loop.run_until_complete(begin())
    finally:
        loop.close()


def test_workers_that_have_to_start_again_get_a_zygote_beside_them() -> None:
    assert looks_until_zygote(starts=1) == MOST_LOOKS
    assert looks_until_zygote(starts=2) == 1


class Counting(asyncio.SelectorEventLoop):
    """Counts the timers that are set."""

    timers = 0

    def call_at(self, when: float, callback: Callable[..., object], *args: Any, **more: Any) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(when, callback, *args, **more)


@pytest.mark.parametrize("pause", [0.0, 2.5])
def test_where_no_zygote_is_wanted_nobody_looks_at_the_workers(pause: float, tmp_path: Path) -> None:
    nothing = cast("Any", None)
    workers = Workers(
        children=nothing,
        program=Program(kind="script", target="train.py"),
        launch=nothing,
        logs=nothing,
        log_dir=tmp_path,
        environment={},
        zygote=None,
        exited=nothing,
        said=nothing,
    )

    async def begin() -> None:
        ZygoteWatch(workers, pause, lambda: None).begin(anew=True)
        for _ in range(3):
            await asyncio.sleep(0)

    loop = Counting()
    try:
        loop.run_until_complete(begin())
    finally:
        loop.close()
    assert loop.timers == 0
