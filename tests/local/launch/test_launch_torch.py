"""The launcher and the store with torch itself: real process groups."""

from __future__ import annotations

import json
import re
import subprocess

from tests.support.launch_harness import Stage

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
    assert all("ddp-launch: Restarts by cause: failure 1." in agent.lines for agent in agents)


EARLY = """
import json, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    os._exit(0)  # without a word to the others
while True:
    dist.all_reduce(torch.ones(1))
"""


def test_a_rank_that_ends_with_0_while_the_others_are_in_a_collective_is_named(stage: Stage) -> None:
    script = stage.script(EARLY)
    files = [stage.folder / f"termination-{index}" for index in (0, 1)]
    stage.store()
    runs = [stage.agent(index, script, restarts=0, DDP_TERMINATION_LOG=str(file)) for index, file in enumerate(files)]
    assert [run.code() for run in runs] == [1, 1]
    for run, file in zip(runs, files, strict=True):
        error = json.loads(file.read_text())
        assert (error["rank"], error["exit_code"], error["reason"]) == (1, 0, "early_exit"), run.output
        assert error["message"].startswith("ended with code 0 before the others; rank 0 then failed: ")
        assert re.search(r"Rank 1 on .+ ended with code 0 before the others", run.lines[-2]), run.output
