"""Log directory of each generation, also for workers that were started before it."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from ddp_trainer.launch.host.environment import Launch
from ddp_trainer.launch.protocol.generation import Generation, Node
from ddp_trainer.launch.workers import worker_group
from ddp_trainer.launch.workers.children import Children
from ddp_trainer.launch.workers.logs import LogSpec, Std
from ddp_trainer.launch.workers.worker_group import Program, Workers
from tests.support.launch_simulation import place_of

NODE = Node(token="token", name="worker-0", index=0, local_world_size=1)
FIRST = place_of(Generation(number=1, fence=1, nodes=(NODE,), master_address="127.0.0.1", master_port=1), NODE.token)


def workers_in(log_dir: Path, ended: asyncio.Queue[int]) -> Workers:
    return Workers(
        children=Children(asyncio.get_running_loop()),
        program=Program(kind="command", target="sh", arguments=("-c", "echo started; exec sleep 600")),
        launch=Launch(run_id="run", local_world_size=1, max_restarts=0),
        logs=LogSpec(redirects=Std.OUT),
        log_dir=log_dir,
        environment=dict(os.environ),
        fork_server=None,
        exited=lambda local_rank, _: ended.put_nowait(local_rank),
        on_message=lambda *_: None,
    )


async def use(log_dir: Path, *, prepares: bool) -> None:
    ended: asyncio.Queue[int] = asyncio.Queue()
    workers = workers_in(log_dir, ended)
    if prepares:
        workers.prepare()
    for number in (1, 2):
        workers.start(replace(FIRST, number=number))
        output = workers.folder(number) / "0" / "stdout.log"
        while output.read_text() != "started\n":  # noqa: ASYNC110 - files have no event
            await asyncio.sleep(0.01)
        workers.error_file(number, 0).write_text("{}")
        workers.signal(signal.SIGKILL)
        await ended.get()
    workers.start(replace(FIRST, number=2))  # of a store that has forgotten the first one
    assert not workers.error_file(2, 0).exists()
    workers.signal(signal.SIGKILL)
    await ended.get()
    workers.close()


def test_folders_are_counted_from_0_and_what_an_earlier_launcher_left_is_removed(tmp_path: Path) -> None:
    left = tmp_path / "attempt_0" / "0"
    left.mkdir(parents=True)
    (left / "error.json").write_text("{}")
    (left / "stderr.log").write_text("of an earlier container")
    asyncio.run(use(tmp_path, prepares=False))
    assert not (left / "stderr.log").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt_0", "attempt_1"]


def test_what_workers_wrote_while_they_got_ready_is_in_the_folder_of_the_generation_they_join(tmp_path: Path) -> None:
    asyncio.run(use(tmp_path, prepares=True))
    assert (tmp_path / "attempt_0" / "0" / "stdout.log").read_text() == "started\n"


async def replace_second_worker(log_dir: Path, times: int) -> None:
    """Form generations in which the first worker survives and the second one is replaced."""
    ended: asyncio.Queue[int] = asyncio.Queue()
    workers = workers_in(log_dir, ended)
    workers.launch = Launch(run_id="run", local_world_size=2, max_restarts=times)
    for number in range(1, times + 1):
        workers.start(replace(FIRST, number=number))
        if number < times:
            os.kill(workers.pids[1], signal.SIGKILL)
            assert await ended.get() == 1
    workers.signal(signal.SIGKILL)
    for _ in range(2):
        await ended.get()
    workers.close()


def test_the_newest_folders_and_those_of_survivors_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "KEPT_GENERATIONS", 3)
    asyncio.run(replace_second_worker(tmp_path, 6))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attempt_0", "attempt_3", "attempt_4", "attempt_5"]
