"""Workers that outlive their group: nodes die, leave, join, step in, and the others keep their processes."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from bench.drivers.fork_server import workers
from tests.local.workloads import train_bits, train_half_evaluated, train_reformed, train_slices_moved
from tests.local.workloads.train_reformed import EPOCHS, demand_every_sample_once
from tests.support.launch_harness import Running, Stage, is_alive, wait_until

QUICKLY = {"OMP_NUM_THREADS": "1", "DDP_FORK_SERVER": "0.5"}
OWN_LOOP = ("-m", train_reformed.__name__)
TRAINER = (
    *("-m", "ddp_trainer", "train", "--task", f"{train_reformed.__name__}:SlowDigits", "--level", "exact"),
    *("--global-batch", "16", "--batch-slices", "4", "--max-steps", "150", "--evaluate-every", "100"),
    *("--log-steps", "1"),
)


def agent(
    stage: Stage, index: int, program: tuple[str, ...], *, nnodes: str = "1:2", nproc: int = 1, **env: str
) -> Running:
    (stage.folder / "log").mkdir(exist_ok=True)
    folder = {"HURRY": str(stage.folder / "hurry"), "FETCH_LOG": str(stage.folder / "log")}
    checkpoints = {"DDP_CHECKPOINT_DIR": str(stage.folder / "checkpoints")}
    return stage.agent(
        index, "--nproc-per-node", str(nproc), *program, nnodes=nnodes, **QUICKLY, **folder, **checkpoints, **env
    )


def training(running: Running, world: int, *, after: int = 0) -> int:
    """Process id of a worker of this agent, once it steps in a world of this size, after so many lines."""
    return int(running.line(rf'"pid": (\d+), "world": {world}, "step": ', after=after)[1])


def hurry(stage: Stage) -> None:
    (stage.folder / "hurry").touch()


def told(running: Running, event: str) -> dict[str, Any]:
    """Return the only event of this name."""
    (line,) = (line for line in running.lines if f'"event": "{event}"' in line)
    return dict(json.loads(line))


def demand_summary(running: Running, **wanted: object) -> None:
    """Assert that the summary has these values and that no sample was lost or repeated."""
    wanted |= {"samples_lost": 0, "samples_repeated": 0}
    assert wanted.items() <= told(running, "summary")["summary"].items()


def demand_nothing_lost(stage: Stage, running: Running) -> None:
    """Assert that a loop that has ended counted every step and every sample once."""
    demand_summary(running, lost_steps=0)
    demand_every_sample_once(stage.folder / "log", EPOCHS)


@pytest.mark.any_torch
def test_a_loop_of_ones_own_survives_a_lost_node_a_joining_and_a_leaving_one_in_its_process(stage: Stage) -> None:
    stage.store()
    first, second = (agent(stage, index, OWN_LOOP) for index in (0, 1))
    survivor, lost = training(first, 2), training(second, 2)
    second.send(signal.SIGKILL)
    assert training(first, 1) == survivor
    wait_until(lambda: not is_alive(lost), "the worker of a lost agent goes on")
    seen = len(first.lines)
    joiner = agent(stage, 1, OWN_LOOP)
    assert training(first, 2, after=seen) == survivor
    training(joiner, 2)
    seen = len(first.lines)
    joiner.send(signal.SIGTERM)
    assert joiner.code() == 143
    assert training(first, 1, after=seen) == survivor
    hurry(stage)
    assert first.code() == 0
    demand_nothing_lost(stage, first)


@pytest.mark.any_torch
def test_a_peer_that_dies_costs_no_survivor_whose_step_takes_longer_than_a_stuck_one_may_live(stage: Stage) -> None:
    stage.store()
    first, second = (agent(stage, index, OWN_LOOP, nnodes="2", PAUSE="4") for index in (0, 1))
    survivor, victim = training(first, 2), training(second, 2)
    seen, before = len(first.lines), len(second.lines)
    subprocess.run(["kill", "-9", str(victim)], check=True)
    assert training(first, 2, after=seen) == survivor
    assert training(second, 2, after=before) != victim
    hurry(stage)
    assert [first.code(), second.code()] == [0, 0]
    demand_nothing_lost(stage, first)


def test_of_two_survivors_the_one_that_is_stuck_is_killed_and_named_and_the_other_keeps_its_process(
    stage: Stage,
) -> None:
    stage.store()
    first = agent(stage, 0, TRAINER, nnodes="1", nproc=3, DDP_HANG_FLOOR="1")  # so it knows soon how long steps take
    first.line("^step 20/")
    survivor, stuck, victim = workers(first.pid)
    subprocess.run(["kill", "-STOP", str(stuck)], check=True)
    seen = len(first.lines)
    subprocess.run(["kill", "-9", str(victim)], check=True)
    first.line(r"Killing what did not stop in time: local rank 1\.", after=seen)
    first.line("^step ", after=len(first.lines))
    assert workers(first.pid)[0] == survivor
    hurry(stage)
    assert first.code() == 0


def test_a_worker_that_somebody_tells_to_end_is_replaced_at_the_cost_of_one_free_restart(stage: Stage) -> None:
    stage.store()
    first = agent(stage, 0, OWN_LOOP, nnodes="1", nproc=2)
    training(first, 2)
    survivor, victim = workers(first.pid)
    seen = len(first.lines)
    subprocess.run(["kill", "-TERM", str(victim)], check=True)
    first.line("generation 2:", after=seen)
    training(first, 2, after=next(number for number, line in enumerate(first.lines) if "generation 2:" in line))
    assert is_alive(survivor)
    hurry(stage)
    assert first.code() == 0
    assert "Restarts by cause: preemption 1." in first.output
    demand_every_sample_once(stage.folder / "log", EPOCHS)


def test_a_store_that_goes_away_and_comes_back_lets_workers_outlive_the_next_fault(stage: Stage) -> None:
    store = stage.store()
    first, second = (agent(stage, index, OWN_LOOP) for index in (0, 1))
    survivor, _ = training(first, 2), training(second, 2)
    store.send(signal.SIGKILL)
    store.code()
    second.send(signal.SIGKILL)
    stage.store("--adopt-seconds", "1")
    assert training(first, 1) == survivor
    hurry(stage)
    assert first.code() == 0
    demand_nothing_lost(stage, first)


def digest_of(running: Running) -> str:
    return running.line(r"SHA-256 ([0-9a-f]{64})")[1]


@pytest.mark.any_torch
def test_a_spare_steps_in_and_exact_training_has_the_bits_of_a_run_without_a_fault(stage: Stage) -> None:
    stage.store()
    first, second = (agent(stage, index, TRAINER, nnodes="2") for index in (0, 1))
    first.line("on 2 ranks")
    (survivor,) = workers(first.pid)
    spare = agent(stage, 2, TRAINER, nnodes="2")
    spare.line("the group is full, waiting as a spare")
    second.send(signal.SIGKILL)
    first.line(r"on 2 ranks.*resumed after step [1-9]")
    assert workers(first.pid) == [survivor]
    hurry(stage)
    assert [first.code(), spare.code()] == [0, 0]
    summary = json.loads(next(line for line in first.lines if line.startswith("{")))
    assert [summary[name] for name in ("samples_lost", "samples_repeated", "lost_steps")] == [0, 0, 0]
    alone = stage.launch("--nproc-per-node", "1", *TRAINER, HURRY=str(stage.folder / "hurry"), OMP_NUM_THREADS="1")
    assert alone.code() == 0
    assert digest_of(first) == digest_of(alone)


def test_ranks_of_which_one_missed_the_result_of_an_evaluation_agree_on_what_is_next(stage: Stage) -> None:
    run = stage.launch(
        *("--nproc-per-node", "2", "--max-restarts", "3", "-m", train_half_evaluated.__name__),
        *("--task", f"{train_bits.__name__}:SmallDigits", "--global-batch", "55", "--epochs", "2"),
        *("--timeout-seconds", "10"),
        **QUICKLY,
    )
    assert run.code() == 0, run.output
    summary = json.loads(next(line for line in run.lines if line.startswith("{")))
    assert [summary[name] for name in ("samples_lost", "samples_repeated", "lost_steps")] == [0, 0, 0]
    assert sum(summary["restarts"].values()) == 1


def test_a_step_counts_once_of_which_a_rank_dies_when_slices_move_after_it(stage: Stage) -> None:
    task = ("--task", f"{train_bits.__name__}:SmallDigits", "--global-batch", "36", "--batch-slices", "5")
    flags = (*task, "--level", "exact", "--max-steps", "14")
    ranks = ("--nproc-per-node", "2", "--max-restarts", "3", "-m", train_slices_moved.__name__)
    run = stage.launch(*ranks, *flags, "--balance", "dynamic", **QUICKLY)
    assert run.code() == 0, run.output
    assert any("resumed after step 10" in line for line in run.lines), (
        run.output
    )  # of the survivor: there is no checkpoint
    summary = json.loads(next(line for line in run.lines if line.startswith("{")))
    assert [summary[name] for name in ("samples_lost", "samples_repeated", "lost_steps")] == [0, 0, 0]
    alone = stage.launch("--nproc-per-node", "1", "-m", "ddp_trainer", "train", *flags, OMP_NUM_THREADS="1")
    assert alone.code() == 0, alone.output
    assert digest_of(run) == digest_of(alone)


def test_a_worker_that_cannot_outlive_its_group_leaves_it_for_a_joiner_without_a_failure(stage: Stage) -> None:
    program = ("-m", "ddp_trainer", "train", "--task", f"{train_reformed.__name__}:SlowDigits", "--sync-steps", "2")
    program += ("--strategy", "local-sgd", "--global-batch", "16", "--batch-slices", "2", "--max-steps", "60")
    stage.store()
    first = agent(stage, 0, program)
    first.line("on 1 rank")
    joiner = agent(stage, 1, program)
    first.line("on 2 ranks")
    hurry(stage)
    assert [first.code(), joiner.code()] == [0, 0]
    assert "Restarts by cause: resize 1." in first.output


def sockets_and_threads(pid: int) -> tuple[int, int]:
    links = [str(path.readlink()) for path in Path(f"/proc/{pid}/fd").iterdir() if path.is_symlink()]
    return sum(link.startswith("socket:") for link in links), len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.any_torch
@pytest.mark.long
def test_a_compiled_model_holds_no_more_of_its_groups_the_more_there_were(stage: Stage) -> None:
    program = (*TRAINER[:5], "--global-batch", "16", "--batch-slices", "4", "--epochs", "900", "--log-steps", "1")
    compiled = (*program, "--compile", "--compile-backend", "eager")
    stage.store()
    first = agent(stage, 0, compiled, PAUSE="0.02")
    first.line("^step 3/")
    (survivor,) = workers(first.pid)
    held: list[tuple[int, int]] = []
    for _ in range(2):
        seen = len(first.lines)
        second = agent(stage, 1, compiled, PAUSE="0.02")
        first.line("generation .*: 2 workers", after=seen)
        first.line("^step ", after=len(first.lines))
        seen = len(first.lines)
        second.send(signal.SIGKILL)
        first.line("generation .*: 1 worker,", after=seen)
        first.line("^step ", after=len(first.lines) + 2)
        held.append(sockets_and_threads(survivor))
    for _ in range(100):  # a thread of the last group may need its time to end
        if held[1][0] <= held[0][0] and held[1][1] <= held[0][1]:
            break
        first.line("^step ", after=len(first.lines))
        held[1] = sockets_and_threads(survivor)
    assert held[1][0] <= held[0][0]
    assert held[1][1] <= held[0][1]
    assert workers(first.pid) == [survivor]
