"""A loss or gradient that is not finite, seen by one rank of two: both stop, skip, or go back."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddp_trainer.common.constants import Exit
from tests.local.workloads.train_outcome import STEPS, fail, train

EXACTLY_ONCE = {"samples_lost": 0, "samples_repeated": 0, "steps": STEPS}
MARKED_STEP = 3
"""Step of the first epoch that has the marked sample; its checkpoint is the last good one."""


@pytest.mark.parametrize(
    ("task", "sentence"),
    [
        ("MarkedDigits", f"error: The loss of step {MARKED_STEP} is nan. Lower the learning rate"),
        ("FlawedGradient", f"error: A gradient of step {MARKED_STEP} is infinite or not a number. Lower "),
    ],
)
def test_by_default_all_ranks_stop_before_the_weights_are_spoilt(task: str, sentence: str, tmp_path: Path) -> None:
    flags = ["--checkpoint-dir", str(tmp_path / "c"), "--checkpoint-steps", "1"]
    codes, said = fail(tmp_path, flags, task=task)
    assert codes == [Exit.FAILURE] * 2
    assert said.splitlines()[-1].startswith(sentence)
    assert max(each.name for each in (tmp_path / "c").glob("step-*")) <= f"step-{MARKED_STEP:08d}"


@pytest.mark.parametrize("task", ["MarkedDigits", "FlawedGradient"])
@pytest.mark.parametrize("strategy", ["ddp", "local-sgd"])
def test_a_step_is_skipped_by_all_ranks_and_its_samples_count(task: str, strategy: str, tmp_path: Path) -> None:
    ended = train(tmp_path, ["--on-nonfinite", "skip", "--strategy", strategy], task=task)
    assert EXACTLY_ONCE.items() <= ended.summary.items()
    assert ended.summary["skipped_steps"] == 1
    [note] = ended.notes
    assert f"step {MARKED_STEP} is" in note
    assert note.endswith("Its samples are consumed and the weights stay: 1 skipped so far.")
    assert ended.losses[-1] < ended.losses[0] * 0.9


def test_a_skipped_step_stays_skipped_when_a_later_crash_is_resumed(tmp_path: Path) -> None:
    flags = ["--on-nonfinite", "skip", "--checkpoint-steps", "4", "--checkpoint-dir"]
    whole = train(tmp_path / "whole", [*flags, str(tmp_path / "whole/c")], task="MarkedDigits")
    killed = train(tmp_path / "killed", [*flags, str(tmp_path / "killed/c")], task="MarkedDigits", kill_at=10)
    assert killed.summary["loss"] == whole.summary["loss"]
    assert killed.summary["skipped_steps"] == whole.summary["skipped_steps"] == 1
    assert EXACTLY_ONCE.items() <= killed.summary.items()


def test_running_statistics_of_a_skipped_step_are_dropped_with_it(tmp_path: Path) -> None:
    ended = train(tmp_path, ["--on-nonfinite", "skip"], task="FlawedStatistics")
    assert ended.summary["skipped_steps"] == 1
    assert ended.summary["loss"] < ended.losses[0]


def test_skipping_without_end_ends(tmp_path: Path) -> None:
    flags = ["--on-nonfinite", "skip", "--nonfinite-limit", "2", "--learning-rate", "1e38", "--warmup-steps", "0"]
    codes, said = fail(tmp_path, flags)
    assert codes == [Exit.FAILURE] * 2
    assert "2 steps before it were skipped in a row (--nonfinite-limit)." in said


def test_after_a_flaw_that_does_not_come_back_the_result_is_that_of_an_undisturbed_run(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    flags = ["--on-nonfinite", "rollback", "--checkpoint-steps", "2", "--checkpoint-dir"]
    whole = train(
        tmp_path / "whole", [*flags, str(tmp_path / "whole/c")], task="FlawedOnce", env={"FLAW": str(tmp_path / "none")}
    )
    flawed = train(
        tmp_path / "flawed",
        [*flags, str(tmp_path / "flawed/c")],
        task="FlawedOnce",
        env={"FLAW": str(tmp_path / "new")},
    )
    assert flawed.summary["loss"] == whole.summary["loss"]
    assert EXACTLY_ONCE.items() <= flawed.summary.items()
    assert (flawed.summary["rollbacks"], flawed.summary["skipped_steps"]) == (1, 0)
    assert flawed.summary["lost_steps"] == MARKED_STEP - 2
    assert f"The loss of step {MARKED_STEP} is nan. Rolled back to step 2: steps to do again: 1." in flawed.notes


def test_a_run_that_was_rolled_back_can_be_killed_and_resumed(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    flags = ["--on-nonfinite", "rollback", "--checkpoint-steps", "2", "--checkpoint-dir"]
    clean, flaw = {"FLAW": str(tmp_path / "none")}, {"FLAW": str(tmp_path / "new")}
    whole = train(tmp_path / "whole", [*flags, str(tmp_path / "whole/c")], task="FlawedOnce", env=clean)
    killed = train(tmp_path / "killed", [*flags, str(tmp_path / "killed/c")], task="FlawedOnce", env=flaw, kill_at=9)
    assert killed.summary["loss"] == whole.summary["loss"]
    assert killed.summary["rollbacks"] == 1
    assert EXACTLY_ONCE.items() <= killed.summary.items()


def test_before_the_first_save_a_rollback_goes_to_the_very_beginning(tmp_path: Path) -> None:
    flags = ["--on-nonfinite", "rollback", "--checkpoint-dir", str(tmp_path / "c")]
    ended = train(tmp_path, flags, task="FlawedOnce", env={"FLAW": str(tmp_path / "new")})
    assert ended.summary["lost_steps"] == MARKED_STEP
    assert EXACTLY_ONCE.items() <= ended.summary.items()


def test_a_flaw_that_comes_back_ends_the_run_after_so_many_rollbacks(tmp_path: Path) -> None:
    flags = ["--on-nonfinite", "rollback", "--nonfinite-limit", "2", "--checkpoint-dir", str(tmp_path / "c")]
    codes, said = fail(tmp_path, flags, task="MarkedDigits")
    assert codes == [Exit.FAILURE] * 2
    assert "The run was rolled back 2 times already (--nonfinite-limit)." in said


def test_a_rollback_needs_somewhere_to_go(tmp_path: Path) -> None:
    codes, said = fail(tmp_path, ["--on-nonfinite", "rollback"])
    assert codes == [Exit.USAGE] * 2
    assert "error: --on-nonfinite is rollback, but no checkpoints are kept. Give a --checkpoint-dir." in said
