"""Numbers of fewer bits, on two real ranks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ddp_trainer.common.constants import Exit
from ddp_trainer.common.trainer_options import PrecisionName
from ddp_trainer.train.transforms.precision import unsupported_reason
from tests.local.workloads.train_forked import PROGRAM
from tests.local.workloads.train_outcome import STEPS, fail, train

IMITATED = ("-c", PROGRAM)


def test_bf16_learns_what_32_bits_do_up_to_its_own_rounding_at_any_world(tmp_path: Path) -> None:
    full, half = (train(tmp_path / name, ["--precision", name]) for name in ("fp32", "bf16"))
    assert half.losses != full.losses
    assert half.losses == pytest.approx(full.losses, rel=0.02)
    alone = train(tmp_path / "alone", ["--precision", "bf16"], world=1)
    assert half.losses == pytest.approx(alone.losses, rel=1e-3)


def test_fp16_skips_what_overflows_on_all_ranks_and_goes_on_from_its_loss_scale(tmp_path: Path) -> None:
    flags = ["--precision", "fp16", "--checkpoint-steps", "4", "--checkpoint-dir"]
    undisturbed = train(tmp_path / "whole", [*flags, str(tmp_path / "whole/c")], task="Overflowing", program=IMITATED)
    killed = train(
        tmp_path / "killed", [*flags, str(tmp_path / "killed/c")], task="Overflowing", program=IMITATED, kill_at=10
    )
    assert any(note.endswith("It was skipped: the loss scale is now 32768.") for note in undisturbed.notes)
    assert undisturbed.summary["skipped_steps"] == killed.summary["skipped_steps"] == 1
    assert killed.losses == undisturbed.losses[-len(killed.losses) :]
    assert killed.summary["loss"] == undisturbed.summary["loss"]
    assert {"samples_lost": 0, "samples_repeated": 0, "steps": STEPS}.items() <= killed.summary.items()


@pytest.mark.parametrize("name", [name for name in PrecisionName if unsupported_reason(name, torch.device("cpu"))])
def test_a_precision_that_the_processor_lacks_is_refused(name: PrecisionName, tmp_path: Path) -> None:
    codes, errors = fail(tmp_path, ["--precision", name, "--device", "cpu"])
    assert codes == [Exit.USAGE] * 2
    assert errors.startswith(f"error: --precision is {name}, but ")
    assert " has " in errors
    assert len(errors.splitlines()) == 1


def test_synchronised_batchnorm_says_that_it_needs_gpus(tmp_path: Path) -> None:
    codes, errors = fail(tmp_path, ["--sync-batchnorm", "--device", "cpu"], task="NormalizedDigits")
    assert codes == [Exit.USAGE] * 2
    assert "torch's SyncBatchNorm does not run on the CPU. Leave it out: each batch slice is normalized" in errors


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="torch's SyncBatchNorm needs a GPU for each of two ranks")
def test_synchronised_batchnorm_learns(tmp_path: Path) -> None:
    ended = train(tmp_path, ["--sync-batchnorm", "--batch-slices", "2", "--device", "cuda"], task="NormalizedDigits")
    assert ended.losses[-1] < ended.losses[0]
