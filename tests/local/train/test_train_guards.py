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
    codes, errors = fail(tmp_path, flags, task=task)
    assert codes == [Exit.FAILURE] * 2
    assert errors.splitlines()[-1].startswith(sentence)
    assert max(path.name for path in (tmp_path / "c").glob("step-*")) <= f"step-{MARKED_STEP:08d}"


@pytest.mark.parametrize(("task", "strategy"), [("MarkedDigits", "ddp"), ("FlawedGradient", "local-sgd")])
def test_a_step_is_skipped_by_all_ranks_and_its_samples_count(task: str, strategy: str, tmp_path: Path) -> None:
    ended = train(tmp_path, ["--on-nonfinite", "skip", "--strategy", strategy], task=task)
    assert EXACTLY_ONCE.items() <= ended.summary.items()
    assert ended.summary["skipped_steps"] == 1
    [note] = ended.notes
    assert f"step {MARKED_STEP} is" in note
    assert note.endswith("Its samples are consumed and the weights stay: 1 skipped so far.")
    assert ended.losses[-1] < ended.losses[0] * 0.9


def test_skipping_without_end_ends(tmp_path: Path) -> None:
    flags = ["--on-nonfinite", "skip", "--nonfinite-limit", "2", "--learning-rate", "1e38", "--warmup-steps", "0"]
    codes, errors = fail(tmp_path, flags)
    assert codes == [Exit.FAILURE] * 2
    assert "2 steps before it were skipped in a row (--nonfinite-limit)." in errors


def test_a_run_that_was_rolled_back_can_be_killed_and_resumed(tmp_path: Path) -> None:
    (tmp_path / "none").touch()
    flags = ["--on-nonfinite", "rollback", "--checkpoint-steps", "2", "--checkpoint-dir"]
    clean, flaw = {"FLAW": str(tmp_path / "none")}, {"FLAW": str(tmp_path / "new")}
    undisturbed = train(tmp_path / "whole", [*flags, str(tmp_path / "whole/c")], task="FlawedOnce", env=clean)
    killed = train(tmp_path / "killed", [*flags, str(tmp_path / "killed/c")], task="FlawedOnce", env=flaw, kill_at=9)
    assert killed.summary["loss"] == undisturbed.summary["loss"]
    assert (killed.summary["rollbacks"], killed.summary["skipped_steps"]) == (1, 0)
    assert EXACTLY_ONCE.items() <= killed.summary.items()


def test_a_flaw_that_comes_back_ends_the_run_after_so_many_rollbacks(tmp_path: Path) -> None:
    flags = ["--on-nonfinite", "rollback", "--nonfinite-limit", "2", "--checkpoint-dir", str(tmp_path / "c")]
    codes, errors = fail(tmp_path, flags, task="MarkedDigits")
    assert codes == [Exit.FAILURE] * 2
    assert "The run was rolled back 2 times already (--nonfinite-limit)." in errors
