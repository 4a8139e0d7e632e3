"""Ranks of a sharded model die, and the others continue from memory: nothing is lost, reread or initialized again."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest

from bench.drivers.fork_server import workers
from tests.local.launch.test_launch_reform import QUICKLY, demand_summary, hurry
from tests.local.workloads import train_half_voted, train_slow_disk
from tests.support.launch_harness import Running, Stage, stage_of

STEPS = 60
SAVED_EVERY = 5
TASK = (
    *("--task", f"{train_half_voted.__name__}:SlowNumbers", "--global-batch", "16", "--batch-slices", "4"),
    *("--epochs", "90"),
)
PROGRAM = ("-m", train_half_voted.__name__, *TASK, "--max-steps", str(STEPS), "--log-steps", "1", "--log-json")
FLAGS = (*PROGRAM, "--clip-norm", "0.2", "--schedule", "constant", "--evaluate-every", "99")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    """Losses of one process that nothing happens to."""
    for stage in stage_of(tmp_path_factory.mktemp("alone")):
        alone = stage.launch("--nproc-per-node", "1", *FLAGS, **QUICKLY, HURRY=str(stage.folder))
        assert alone.code() == 0, alone.output
        found = losses(alone)
    return found


def losses(running: Running) -> dict[int, float]:
    """Return the last reported loss of each step."""
    events = [json.loads(line) for line in running.lines if '"event": "step"' in line]
    return {event["step"]: event["loss"] for event in events}


def saved_slowly(stage: Stage) -> tuple[str, ...]:
    """The program, which saves when a group ends by agreement, and not before."""
    saved = ("--checkpoint-dir", str(stage.folder / "kept"), "--checkpoint-seconds", "inf")
    return ("-m", train_slow_disk.__name__, *FLAGS[2:], *saved)


def watched(stage: Stage, *, pause: str) -> dict[str, str]:
    """Environment of a task that is slow until a file exists, and logs each weight that it makes."""
    return {**QUICKLY, "HURRY": str(stage.folder / "hurry"), "MADE": str(stage.folder / "made"), "PAUSE": pause}


def made(stage: Stage) -> int:
    """Return how often ranks have made the logged weight."""
    return len((stage.folder / "made").read_text().splitlines())


@pytest.mark.any_torch
@pytest.mark.parametrize(
    ("cut", "slices"),
    [("shard=2", 4), *(pytest.param(*item, marks=pytest.mark.long) for item in (("tp=2", 2), ("pp=2", 4)))],
)
def test_a_lost_rank_and_a_lost_verdict_cost_two_replicas_of_two_ranks_no_step(
    stage: Stage, undisturbed: dict[int, float], cut: str, slices: int
) -> None:
    env = watched(stage, pause="0.3")
    layout = ("--parallel", f"replicate=2,{cut}", "--batch-slices", str(slices))
    run = stage.launch("--nproc-per-node", "4", "--max-restarts", "9", *FLAGS, *layout, **env)
    # After the verdict that rank 1 did not hear.
    run.line(f'"event": "started".*"resumed_step": {train_half_voted.UNHEARD + 1}')
    seen = len(run.lines)
    run.line('"event": "step"', after=seen)
    survivors, victim = workers(run.pid)[:3], workers(run.pid)[3]
    subprocess.run(["kill", "-9", str(victim)], check=True)
    run.line('"event": "started"', after=seen)
    assert workers(run.pid)[:3] == survivors
    hurry(stage)
    assert run.code() == 0, run.output
    assert made(stage) == 1
    demand_summary(run, lost_steps=0, steps=STEPS)
    assert losses(run) == pytest.approx(undisturbed, rel=1e-4)
    assert sorted(losses(run)) == list(range(1, STEPS + 1))


def test_a_replica_goes_with_its_node_and_comes_back_healed_while_the_other_one_trains(stage: Stage) -> None:
    """In slices, where torch caches the most: the grid of the ranks differs each time."""
    env = watched(stage, pause="1")
    layout = ("--parallel", "replicate=1:2,tp=2", "--batch-slices", "2")
    program = ("--nproc-per-node", "2", *FLAGS, *layout, "--max-steps", "40")
    stage.store()
    first, second = (stage.agent(index, *program, nnodes="1:2", **env) for index in (0, 1))
    first.line('"event": "started".*"world_size": 4')
    survivors, seen = workers(first.pid), len(first.lines)
    assert len(survivors) == 2
    first.line('"event": "step"', after=seen)
    second.send(signal.SIGKILL)
    first.line('"event": "started".*"world_size": 2', after=seen)
    seen = len(first.lines)
    second = stage.agent(1, *program, nnodes="1:2", **env)
    first.line('"event": "started".*"world_size": 4', after=seen)
    assert workers(first.pid) == survivors
    hurry(stage)
    assert [first.code(), second.code()] == [0, 0], first.output
    assert made(stage) == 1
    demand_summary(first, lost_steps=0)


def test_two_shards_go_on_from_the_disk_where_two_of_four_are_gone_for_good(
    stage: Stage, undisturbed: dict[int, float]
) -> None:
    """No replica holds the lost shard, and the range of layouts allows a smaller one."""
    env = watched(stage, pause="0.4")
    saved = ("--checkpoint-dir", str(stage.folder / "kept"), "--checkpoint-steps", str(SAVED_EVERY))
    program = ("--nproc-per-node", "2", *FLAGS, *saved, "--parallel", "shard=2:4")
    stage.store()
    first, second = (stage.agent(index, *program, nnodes="1:2", **env) for index in (0, 1))
    first.line('"event": "started".*"world_size": 4')
    first.line(f'"event": "step", "step": {2 * SAVED_EVERY + 1},')  # the second save has waited for the first
    survivors, seen = workers(first.pid), len(first.lines)
    assert len(survivors) == 2
    second.send(signal.SIGKILL)
    went_on = first.line('"event": "started".*"world_size": 2,.*"resumed_step": ([0-9]+)', after=seen)
    assert int(went_on[1]) >= SAVED_EVERY
    assert workers(first.pid) == survivors
    hurry(stage)
    assert first.code() == 0, first.output
    assert made(stage) == 1
    demand_summary(first, steps=STEPS, world_size=2)
    assert losses(first) == pytest.approx(undisturbed, rel=1e-4)
    assert sorted(losses(first)) == list(range(1, STEPS + 1))


@pytest.mark.long
def test_a_group_of_other_pieces_goes_on_from_the_last_save_of_a_rank_that_writes_no_more(stage: Stage) -> None:
    """The save is still running when the new group, with another rank 0, has formed."""
    env = {**QUICKLY, "HURRY": str(stage.folder / "hurry"), "PAUSE": "1"}
    flags = (*saved_slowly(stage), "--parallel", "shard=2:4")
    stage.store()
    early = stage.agent(1, "--nproc-per-node", "2", *flags, nnodes="1:2", **env)
    early.line('"event": "step"')
    survivors = workers(early.pid)
    assert len(survivors) == 2
    first = stage.agent(0, "--nproc-per-node", "2", *flags, nnodes="1:2", **env)
    first.line('"event": "started".*"world_size": 4,.*"resumed_step": [1-9]')
    assert workers(early.pid) == survivors
    hurry(stage)
    assert [first.code(), early.code()] == [0, 0], first.output
    demand_summary(first, lost_steps=0, steps=STEPS)


def test_a_rank_that_somebody_tells_to_end_takes_its_piece_to_the_disk_before_the_others_go_on(stage: Stage) -> None:
    """The first rank waits for it, though it is still about to leave the group when that is over."""
    env = {**QUICKLY, "HURRY": str(stage.folder / "hurry"), "PAUSE": "0.3"}
    run = stage.launch("--nproc-per-node", "2", *saved_slowly(stage), "--parallel", "shard=2", **env)
    run.line('"event": "step"')
    survivor, victim = workers(run.pid)
    subprocess.run(["kill", str(victim)], check=True)
    run.line('"event": "started".*"resumed_step": [1-9]')
    assert workers(run.pid)[0] == survivor
    hurry(stage)
    assert run.code() == 0, run.output
    demand_summary(run, lost_steps=0, steps=STEPS)


@pytest.mark.long
def test_spares_that_have_given_what_they_held_go_on_from_the_disk_when_the_others_are_gone(stage: Stage) -> None:
    env = {**QUICKLY, "HURRY": str(stage.folder / "hurry"), "PAUSE": "0.5"}
    saved = ("--checkpoint-dir", str(stage.folder / "kept"), "--checkpoint-steps", str(SAVED_EVERY))
    program = ("--nproc-per-node", "2", *FLAGS, *saved, "--parallel", "shard=2")
    stage.store()
    spare = stage.agent(1, *program, nnodes="1:2", **env)
    spare.line('"event": "step"')
    first = stage.agent(0, *program, nnodes="1:2", **env)
    given = int(first.line('"event": "started".*"resumed_step": ([0-9]+)')[1])
    seen = len(spare.lines)
    first.line(f'"event": "step", "step": {given + 3 * SAVED_EVERY},')  # a save waits for the one before
    first.send(signal.SIGKILL)
    went_on = spare.line('"event": "started".*"resumed_step": ([0-9]+)', after=seen)
    assert int(went_on[1]) > given
    hurry(stage)
    assert spare.code() == 0, spare.output
    demand_summary(spare, steps=STEPS)
