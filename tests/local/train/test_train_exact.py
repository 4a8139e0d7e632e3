"""``--level exact``: one SHA-256 of weights, optimizer, losses and metrics, at any world, across kills and resizes."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Exit
from tests.local.workloads import train_bits
from tests.local.workloads.train_bits import Runs

STEPS = 12
"""Three epochs of four steps; the last of each has 2 samples for 5 slices."""
FLAGS = ("--max-steps", str(STEPS), "--global-batch", "36", "--batch-slices", "5", "--warmup-steps", "3")
SAVING = ("--checkpoint-steps", "2", "--checkpoint-mode", "sync", "--clip-norm", "0.5")
TORN = (
    (4, "before-reduce:3", 3),
    (3, "after-reduce:3", 5),
    (1, "before-optimizer:3", 7),
    (2, "after-optimizer:3", 9),
    (1, "before-save:0", 10),
    (1, "within-save:0", 10),
    (2, "before-rename:0", 10),
)
"""World, where rank 0 is killed, and the last step whose loss it has told by then."""
EXACT = (*FLAGS, *SAVING, "--level", "exact")


def finished(runs: Runs, world: int, *flags: str) -> str:
    assert runs.train(world, *flags) == [Exit.SUCCESS] * world, runs.said
    assert runs.steps == list(range(1, STEPS + 1))
    return runs.sha256()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> str:
    return finished(Runs(tmp_path_factory.mktemp("alone"), EXACT), 1)


@pytest.mark.parametrize("world", [2, 4])
def test_the_bits_do_not_depend_on_the_world(world: int, alone: str, tmp_path: Path) -> None:
    assert finished(Runs(tmp_path, EXACT), world) == alone


def test_kills_anywhere_and_resizes_on_the_way_leave_the_same_bits(alone: str, tmp_path: Path) -> None:
    runs = Runs(tmp_path, EXACT)
    # Every generation saves after two steps; a save that is torn leaves the next one where it began.
    for world, die_at, reached in TORN:
        codes = runs.train(world, die_at=die_at)
        assert codes == [-signal.SIGKILL] + [Exit.RENDEZVOUS_LOST] * (world - 1), runs.said
        assert runs.steps == list(range(1, reached + 1)), die_at
    assert finished(runs, 1) == alone


def test_ordered_does_not_pass_this_check(alone: str, tmp_path: Path) -> None:
    # The negative control: were these equal, the check could not tell.
    found = {finished(Runs(tmp_path / str(world), (*FLAGS, *SAVING)), world) for world in (1, 2, 3)}
    assert len({*found, alone}) > 2


def test_slices_that_move_to_a_faster_rank_leave_the_same_bits(alone: str, tmp_path: Path) -> None:
    runs = Runs(tmp_path, (*EXACT, "--balance", "dynamic"))
    assert finished(runs, 2) == alone
    assert runs.batch_slices == [4, 1]


def test_small_passes_and_evaluation_by_one_rank_have_the_same_bits_too(tmp_path: Path) -> None:
    flags = (*EXACT, "--micro-batch", "4", "--evaluate-on", "rank0", "--precision", "bf16")
    runs = {world: Runs(tmp_path / str(world), flags) for world in (1, 2)}
    assert len({finished(run, world) for world, run in runs.items()}) == 1
    assert runs[1].notes == runs[2].notes
    assert runs[1].notes[-1].startswith("Weights and optimizer have the SHA-256 ")


@pytest.mark.parametrize(
    ("task", "flags", "left_out"),
    [
        pytest.param(
            "TornDigits",
            ["--on-bad-sample", "skip", "--batch-slices", "18"],
            {"samples_skipped": 120},
            id="empty slices",
        ),
        pytest.param("UnusedDigits", ["--weight-decay", "0.3"], {}, id="weights that some slices or none use"),
        pytest.param(
            "OverflowingDigits", ["--precision", "fp16"], {"skipped_steps": 3}, id="fp16, skipping what overflows"
        ),
    ],
)
def test_what_some_slices_lack_leaves_the_same_bits(
    task: str, flags: list[str], left_out: dict[str, int], tmp_path: Path
) -> None:
    chosen = (*EXACT, *flags, "--task", f"{train_bits.__name__}:{task}")
    runs = {world: Runs(tmp_path / str(world), chosen) for world in (1, 2)}
    assert len({finished(run, world) for world, run in runs.items()}) == 1
    assert all(left_out.items() <= run.summary.items() for run in runs.values()), runs[1].summary


def test_ranks_that_compute_differently_are_refused_in_a_sentence(tmp_path: Path) -> None:
    runs = Runs(tmp_path, EXACT)
    assert runs.train(2, unlike_rank=1) == [Exit.USAGE] * 2
    assert "--level exact cannot give the same bits on unlike machines: rank 0 computes on " in runs.said
    assert len(runs.said.splitlines()) == 1


def test_a_run_that_goes_on_otherwise_than_it_began_says_so(tmp_path: Path) -> None:
    runs = Runs(tmp_path, FLAGS)
    for steps, flags in ((2, ()), (4, ("--level", "exact")), (6, ("--level", "exact", "--threads", "2"))):
        assert runs.train(1, "--max-steps", str(steps), *flags) == [Exit.SUCCESS], runs.said
    first, _, second, _ = runs.notes
    assert first.startswith("The steps so far were computed without --level exact, and those from here on ")
    assert second.count(" thread") == 2
    assert second.endswith("the result will not have the bits of a run that was computed in one way.")
