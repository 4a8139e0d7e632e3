"""Ranks that hang, in a plain DDP script: the launcher names them, and the group recovers by itself."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

from ddp_trainer.common.constants import Exit, FailureReason
from tests.support.launch_harness import HANGING, Running, Stage, order_fault

ACT = ["--on-hang", "act", "--hang-floor", "2"]

ALONE = """
import sys, time, torch, torch.distributed as dist
dist.init_process_group("gloo")
def steps(count, seconds):
    for _ in range(count):
        dist.all_reduce(torch.ones(1))
        time.sleep(seconds)
steps(40, 0.05)
if dist.get_rank() == 0:
    time.sleep(1.0)     # evaluates alone, while the others wait
dist.barrier()
steps(5, 0.05)
time.sleep(3.0)         # the last collective is behind it
print("done", flush=True)
dist.destroy_process_group()
time.sleep(3.0)
"""
"""A slow but healthy run, with pauses just under the hang timeout of five seconds."""


def launch(stage: Stage, *flags: str, steps: int = 1_000_000) -> Running:
    return stage.launch(*flags, str(HANGING), "--steps", str(steps), "--ready", "40", TROUBLE=str(stage.folder))


def test_hanging_ranks_are_named_and_killed_and_the_group_goes_on(stage: Stage) -> None:
    run = launch(stage, *ACT, "--nproc-per-node", "2", "--max-restarts", "3", "--log-dir", str(stage.folder / "logs"))
    for generation, kind, sentence in (
        (1, "stop", r"is stopped by a signal \(state T\)"),
        (2, "loop", r"did not enter (all_reduce|collective) #\d+; at hang_faults.py:\d+ in busy_loop"),
        (3, "skip", r"entered all_reduce\[\[650\]\] where barrier\[\] was due"),
    ):
        run.line(f"generation {generation}: 2 workers")
        wait_for_ready(run, generation)
        order_fault(stage.folder, 1, kind)
        run.line(rf"hang: rank 1 on \S+ {sentence}.* \(limit [\d.]+ s\); it is killed")
    wait_for_ready(run, 4)
    run.send(signal.SIGTERM)
    assert run.code() == Exit.TERMINATED
    run.line("Restarts by cause: hang 3")
    loop = stage.folder / "logs"
    assert "in busy_loop" in next(loop.glob("*/attempt_1/1/stacks.txt")).read_text()
    assert "backward" in next(loop.glob("*/attempt_1/0/stacks.txt")).read_text()


def wait_for_ready(run: Running, generation: int) -> None:
    run.line(rf"^ready: .*generation={generation}$")


def test_over_two_nodes_and_without_restarts_it_ends_for_good(stage: Stage, tmp_path: Path) -> None:
    stage.store()
    termination = tmp_path / "told"
    env = {
        "TROUBLE": str(stage.folder),
        "DDP_ON_HANG": "act",
        "DDP_HANG_FLOOR": "2",
        "DDP_TERMINATION_LOG": str(termination),
    }
    program = [str(HANGING), "--ready", "40"]
    agents = [
        stage.agent(0, *program, restarts=0, **env),
        stage.agent(
            1, *program, restarts=0, **env | {"DDP_TERMINATION_LOG": "", "DDP_RUN_DIR": str(tmp_path / "run-1")}
        ),
    ]
    wait_for_ready(agents[0], 1)
    order_fault(stage.folder, 1, "gil")
    for agent in agents:
        agent.line(r"hang: rank 1 on worker-1 holds the GIL: .*; it is killed")
    assert [agent.code() for agent in agents] == [Exit.DO_NOT_RESTART] * 2
    error = json.loads((tmp_path / "run-1" / "error.json").read_text())
    assert error["reason"] == FailureReason.HANG
    assert error["message"].startswith("Rank 1 on worker-1 holds the GIL")
    assert "in inject_fault" in error["stack"]
    message = json.loads(termination.read_text())
    assert (message["exit_code"], message["pod_exit_code"]) == (Exit.HANG, Exit.DO_NOT_RESTART)
    assert message["message"] == error["message"]


def test_what_only_looks_like_a_hang_is_left_alone(stage: Stage) -> None:
    run = stage.launch("--on-hang", "act", "--hang-floor", "5", "--nproc-per-node", "2", stage.script(ALONE))
    assert run.code() == Exit.SUCCESS
    assert "hang" not in run.output


def test_a_warning_kills_nobody(stage: Stage) -> None:
    run = launch(stage, "--hang-floor", "1", "--nproc-per-node", "2", steps=60)
    wait_for_ready(run, 1)
    order_fault(stage.folder, 1, "nap")
    run.line(r"waiting: the others wait for rank 1 on \S+, which did not enter")
    run.line(r"hang: rank 1 on \S+ did not enter .*; the others wait for it")
    run.line("hang: stack of rank 1")
    order_fault(stage.folder, 1, "wake")
    assert run.code() == Exit.SUCCESS


LATE = """
import os, sys, time
from pathlib import Path
import torch.distributed as dist
if os.environ["RANK"] == "1":
    while not Path(sys.argv[1]).exists():
        time.sleep(0.2)
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""


def test_a_rank_that_does_not_reach_the_first_group_is_named_with_its_line(stage: Stage) -> None:
    run = stage.launch("--nproc-per-node", "3", "--hang-floor", "2", stage.script(LATE, "late.py"), stage.done())
    where = r"late\.py:7 in <module> for \d+\.\d s"
    run.line(rf"waiting: the others wait for rank 1 on \S+, which has not reached init_process_group; at {where}")
    run.line(r'File ".*late\.py", line 7 in <module>')
    stage.finish()
    assert run.code() == 0


def test_a_rank_that_computes_before_the_first_group_is_not_called_a_hang(stage: Stage) -> None:
    busy = LATE.replace("time.sleep(0.2)", "sum(range(100_000))")
    run = stage.launch("--nproc-per-node", "2", "--hang-floor", "1", stage.script(busy), stage.done())
    page = stage.folder / "came"
    watch = "import sys, time\ntime.sleep(8)\nopen(sys.argv[1], 'w')"  # eight times as long as a rank may be missing
    stage.run([sys.executable, "-c", watch, str(page)]).code()
    output = run.output
    assert ("hang:" in output, "waiting:" in output) == (False, False), output
    stage.finish()
    assert run.code() == 0
