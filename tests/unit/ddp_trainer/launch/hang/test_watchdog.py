"""The agent's hang watchdog: real heartbeat pages, and a process without a heartbeat that writes its stacks."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ddp_trainer.launch.hang.watchdog import FIRST_STEP_SECONDS, STEP_FACTOR, HangGuard
from ddp_trainer.launch.protocol.generation import Assignment, Generation, Node
from ddp_trainer.launch.protocol.messages import FromAgent, HangingRanks, RankStates, Show
from ddp_trainer.launch.rendezvous.hang_limits import WARM_UP_MOVES, HangPolicy, OnHang
from ddp_trainer.process import heartbeat_page
from tests.support.launch_simulation import place_of
from tests.support.recorder_server import entry, record, recorder_at

NUMBER = signal.SIGRTMAX - 7
DEAF = """
import faulthandler, sys
faulthandler.register(int(sys.argv[1]), open(sys.argv[2], "a"))
print("ready", flush=True)
sys.stdin.read()
"""


def a_generation(number: int) -> Assignment:
    node = Node(token="t", name="w-0", local_world_size=1, address="127.0.0.1")
    group = Generation(number=number, fence=number, nodes=(node,), master_address="127.0.0.1", master_port=1)
    return place_of(group, "t")


def a_guard(folder: Path, **changes: Any) -> HangGuard:
    """Return the guard of a node that kills hanging ranks; its reports are discarded."""
    actions = dict.fromkeys(("send", "kill", "log"), lambda _: None)
    policy = HangPolicy(on_hang=OnHang.ACT, floor=1000.0)
    return HangGuard(**{"policy": policy, "folder": folder, "node": "w-0", **actions, **changes})


async def condemn(folder: Path, pid: int, *, joins_next: bool) -> list[int]:
    """Declare a rank hung, and return the local ranks that are killed; it may join the next group meanwhile."""
    killed: list[int] = []
    guard = a_guard(folder, kill=killed.append)
    cells = heartbeat_page.open_page(guard.prepare(0))
    cells[heartbeat_page.HAS_GROUP], cells[heartbeat_page.BEAT], cells[heartbeat_page.SIGNAL] = 1.0, 0.0, float(NUMBER)
    guard.begin(a_generation(1), 0, {0: pid}, folder)
    others = asyncio.all_tasks()
    guard.on_message(HangingRanks(generation=1, ranks=(0,), to_kill=(0,), sentences=("rank 0 is silent",)))
    (acting,) = asyncio.all_tasks() - others
    await asyncio.sleep(0)  # it waits for the stacks that its signal requests
    if joins_next:
        guard.begin(a_generation(2), 0, {0: pid}, folder)
    await acting
    guard.end()
    return killed


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("joins_next", [False, True])
def test_a_rank_that_has_left_the_group_it_hung_in_is_not_killed_in_the_next(tmp_path: Path, joins_next: bool) -> None:
    (tmp_path / "0").mkdir()
    command = [sys.executable, "-c", DEAF, str(NUMBER), str(tmp_path / "0" / "stacks.txt")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as deaf:
        assert deaf.stdout.readline() == b"ready\n"
        assert asyncio.run(condemn(tmp_path, deaf.pid, joins_next=joins_next)) == ([] if joins_next else [0])
        deaf.kill()


async def longest_steps(folder: Path, *, survives: bool) -> list[float]:
    """Return seconds to leave: at first, after steps, after another group; then those of a process in first steps."""
    guard = a_guard(folder)
    cells = heartbeat_page.open_page(guard.prepare(0))
    guard.begin(a_generation(1), 0, {0: os.getpid()}, folder)
    known = [guard.longest_step({0})]
    guard.begin(a_generation(2), 0, {0: os.getpid()}, folder)
    cells[heartbeat_page.HAS_GROUP] = 1.0
    for step in range(WARM_UP_MOVES + 3):
        cells[heartbeat_page.TOTAL] = 1.0 + step
        await guard.summarize_ranks()
    known.append(guard.longest_step({0}))
    for number, pid in ((3, os.getpid() if survives else os.getppid()), (4, os.getpid())):
        guard.begin(a_generation(number), 0, {0: pid}, folder)
    known.append(guard.longest_step({0}))
    guard.end()
    return [*known, STEP_FACTOR * (guard._first or 0.0)]


@pytest.mark.parametrize("survives", [True, False])
def test_a_process_may_take_its_own_longest_step_and_a_new_one_the_longest_first_step_of_others(
    tmp_path: Path, survives: bool
) -> None:
    before, learned, after, of_first = asyncio.run(longest_steps(tmp_path, survives=survives))
    assert max(learned, of_first) < before == FIRST_STEP_SECONDS
    assert after == (learned if survives else of_first) > 0


async def test_the_flight_recorder_of_every_rank_is_on_disk_before_the_decision(tmp_path: Path) -> None:
    """The rank may be in any group of its process, while torch's own file has the first one only."""
    sent: list[FromAgent] = []
    second = record({7: (4, 3)}, entry(4, "nccl:all_reduce", group=7, over=False))
    guard = a_guard(tmp_path, send=sent.append)
    heartbeat_page.open_page(guard.prepare(0))[heartbeat_page.HAS_GROUP] = 1.0
    (tmp_path / "attempt" / "0").mkdir(parents=True)
    guard.begin(a_generation(2), 0, {0: os.getpid()}, tmp_path / "attempt")
    others = asyncio.all_tasks()
    with recorder_at(tmp_path / "rank-0.sock", {"dump_nccl_trace_json": second, "fr_trace_json": record({})}):
        guard.on_message(Show(generation=2))
        (acting,) = asyncio.all_tasks() - others
        await acting
    guard.end()
    assert isinstance(sent[-1], RankStates)
    written = json.loads((tmp_path / "attempt" / "0" / "flight_recorder.json").read_text())
    assert written == {"dump_nccl_trace_json": json.loads(second)}
