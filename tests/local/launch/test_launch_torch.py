"""The launcher and the store with torch itself: real process groups."""

from __future__ import annotations

import json
import re

from tests.support.launch_harness import Stage

EARLY = """
import json, os, sys, torch, torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    os._exit(0)  # without a message to the others
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
