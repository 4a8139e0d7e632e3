"""The launcher and the store with torch itself: real process groups."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.launch_harness import Stage, stage_of

ALL_REDUCE = """
import datetime, os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, attempt = dist.get_rank(), os.environ["DDP_GENERATION"]
total = torch.tensor([float(rank)])
dist.all_reduce(total)
print(f"rank={rank} of={dist.get_world_size()} attempt={attempt} sum={total.item():.0f} pid={os.getpid()}", flush=True)
go_on = torch.ones(1)
while go_on.item():
    time.sleep(0.02)
    if rank == 0:  # alone, for the file may appear between two looks
        go_on = torch.tensor([float(not os.path.exists(sys.argv[1]))])
    dist.broadcast(go_on, 0)
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    yield from stage_of(tmp_path)


def test_a_process_group_is_formed_again_after_a_kill(stage: Stage) -> None:
    stage.store()
    script = stage.script(ALL_REDUCE)
    agents = [stage.agent(index, script, stage.done()) for index in (0, 1)]
    victim = agents[0].line(r"rank=0 of=2 attempt=1 sum=1 pid=(\d+)")[1]
    agents[1].line("rank=1 of=2 attempt=1 sum=1")
    subprocess.run(["kill", "-9", victim], check=True)
    for rank, agent in enumerate(agents):
        agent.line(f"rank={rank} of=2 attempt=2 sum=1")
    stage.finish()
    assert [agent.code() for agent in agents] == [0, 0]


EARLY = """
import json, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    os._exit(0)  # without a word to the others
while True:
    dist.all_reduce(torch.ones(1))
"""


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_rank_that_ends_with_0_while_the_others_are_in_a_collective_is_named(stage: Stage, nodes: int) -> None:
    script = stage.script(EARLY)
    files = [stage.folder / f"termination-{index}" for index in range(nodes)]
    if nodes == 1:
        runs = [stage.launch("--nproc-per-node", "2", script, DDP_TERMINATION_LOG=str(files[0]))]
    else:
        stage.store()
        runs = [
            stage.agent(index, script, restarts=0, DDP_TERMINATION_LOG=str(file)) for index, file in enumerate(files)
        ]
    assert [run.code() for run in runs] == [1] * nodes
    for run, file in zip(runs, files, strict=True):
        error = json.loads(file.read_text())
        assert (error["rank"], error["exit_code"], error["reason"]) == (1, 0, "early_exit"), run.output
        assert error["message"].startswith("ended with code 0 before the others; rank 0 then failed: ")
        assert re.search(r"Rank 1 on .+ ended with code 0 before the others", run.lines[-2]), run.output


def test_functions_spawned_by_torch_find_their_module(stage: Stage) -> None:
    script = stage.script(
        "import torch.multiprocessing as mp\n"
        "def work(rank, word): print(f'{word} {rank}\\n', end='')  # one write: both have the same pipe\n"
        "if __name__ == '__main__': mp.spawn(work, args=('hello',), nprocs=2)\n"
    )
    run = stage.launch(script)
    assert run.code() == 0
    assert {"hello 0", "hello 1"} <= set(run.lines)


def test_record_of_torch_and_ours_agree(stage: Stage, tmp_path: Path) -> None:
    script = stage.script(
        "from torch.distributed.elastic.multiprocessing.errors import record\n"
        "@record\ndef main(): raise RuntimeError('seen by record')\nmain()"
    )
    run = stage.launch(script)
    assert run.code() == 1
    assert "RuntimeError: seen by record." in run.output
