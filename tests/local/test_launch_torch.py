"""The launcher and the store with torch itself: real process groups, real torchrun."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_harness import Running, Stage, stage_of

ALL_REDUCE = """
import datetime, os, sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
rank, attempt = dist.get_rank(), os.environ.get("DDP_GENERATION") or os.environ["TORCHELASTIC_RESTART_COUNT"]
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


def torchrun(stage: Stage, index: int, script: str, nnodes: str) -> Running:
    return stage.run(
        [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", nnodes, "--nproc-per-node", "1",
            "--rdzv-backend", "ddp", "--rdzv-endpoint", f"127.0.0.1:{stage.port}", "--rdzv-id", "run",
            "--max-restarts", "2", "--local-addr", "127.0.0.1", script, stage.done(),
        ],
        {"DDP_POD_NAME": f"worker-{index}", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    )  # fmt: skip


def test_stock_torchrun_gets_its_ranks_in_the_order_of_the_pods(stage: Stage) -> None:
    stage.store()
    script = stage.script(ALL_REDUCE)
    agents = {index: torchrun(stage, index, script, "2") for index in (10, 2)}
    agents[2].line("rank=0 of=2 attempt=0 sum=1")
    agents[10].line("rank=1 of=2 attempt=0 sum=1")
    stage.finish()
    assert [agent.code() for agent in agents.values()] == [0, 0]


def test_stock_torchrun_goes_on_after_a_lost_node_and_grows_again(stage: Stage) -> None:
    stage.store()
    script = stage.script(ALL_REDUCE)
    survivor, lost = (torchrun(stage, index, script, "1:2") for index in (0, 1))
    survivor.line("rank=0 of=2")
    lost.line("rank=1 of=2")
    lost.send(signal.SIGKILL)
    survivor.line("rank=0 of=1")
    again = torchrun(stage, 1, script, "1:2")
    again.line("rank=1 of=2")
    stage.finish()
    assert (survivor.code(), again.code()) == (0, 0)
    assert len(re.findall("rank=0 of=2", survivor.output)) == 2


def test_stock_torchrun_that_gives_up_ends_the_run_for_all(stage: Stage) -> None:
    stage.store("--linger-seconds", "600")
    script = stage.script("import os, sys, time\nif os.environ['RANK'] == '1': sys.exit(3)\ntime.sleep(600)")
    agents = [torchrun(stage, index, script, "2") for index in (0, 1)]
    assert [agent.code() for agent in agents] == [1, 1]
