"""All strategies that synchronize each step learn the same; the others within a stated bound."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
import torch

from ddp_trainer.common.constants import Exit
from tests.local.workloads.train_group import WorkerGroup
from tests.local.workloads.train_outcome import COMMON, STEPS, TASKS, Ended, fail, train

EXACTLY_ONCE = {"samples_lost": 0, "samples_repeated": 0, "steps": STEPS}


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    return train(tmp_path_factory.mktemp("ddp"), [])


@pytest.mark.any_torch
@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--strategy", "manual"], id="gradients averaged by hand"),
        pytest.param(["--strategy", "local-sgd", "--sync-steps", "1"], id="weights averaged after every step"),
        pytest.param(["--micro-batch", "3", "--activation-checkpointing"], id="small passes, activations again"),
        pytest.param(["--batch-slices", "2", "--static-graph"], id="one pass per step, static graph"),
        pytest.param(
            ["--bucket-mb", "0.001", "--no-gradient-as-bucket-view", "--find-unused-parameters"],
            id="small buckets, looking for unused weights",
        ),
        pytest.param(["--optimizer-kernel", "fused", "--gc-steps", "3", "--deterministic"], id="fused, by hand, exact"),
    ],
)
def test_two_ranks_learn_what_plain_ddp_does(flags: list[str], ddp: Ended, tmp_path: Path) -> None:
    ended = train(tmp_path, flags)
    assert len(ended.losses) == STEPS
    assert ended.losses == pytest.approx(ddp.losses, rel=1e-4)
    assert ended.losses[-1] < ended.losses[0] * 0.9
    assert EXACTLY_ONCE.items() <= ended.summary.items()


@pytest.mark.parametrize("strategy", ["single", "data-parallel"])
def test_one_process_learns_what_two_ranks_do(strategy: str, ddp: Ended, tmp_path: Path) -> None:
    ended = train(tmp_path, ["--strategy", strategy], world=1)
    assert ended.losses == pytest.approx(ddp.losses, rel=1e-4)
    assert any("DDP, with one process per GPU, is faster" in note for note in ended.notes) == (
        strategy == "data-parallel"
    )


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="nn.DataParallel spreads a batch over two GPUs or more")
def test_data_parallel_spreads_a_batch_over_gpus(ddp: Ended, tmp_path: Path) -> None:
    ended = train(tmp_path, ["--strategy", "data-parallel", "--device", "cuda"], world=1)
    assert ended.losses == pytest.approx(ddp.losses, rel=1e-3)


@pytest.mark.parametrize("strategy", ["single", "data-parallel"])
def test_what_is_for_one_process_refuses_a_group(strategy: str, tmp_path: Path) -> None:
    codes, errors = fail(tmp_path, ["--strategy", strategy])
    assert codes == [Exit.USAGE] * 2
    assert f"error: --strategy {strategy} trains in one process, and this group has 2 ranks." in errors


def test_clipping_and_a_linear_schedule_do_not_depend_on_the_world(tmp_path: Path) -> None:
    flags = ["--clip-norm", "0.2", "--schedule", "linear"]
    alone, together = (train(tmp_path / str(world), flags, world=world) for world in (1, 2))
    assert together.losses == pytest.approx(alone.losses, rel=1e-4)
    assert together.rates == alone.rates
    assert together.rates[:5] == pytest.approx([0.02, 0.04, 0.06, 0.08, 0.1])
    assert together.rates[-1] == pytest.approx(0.1 / 19)


def test_weights_without_a_gradient_are_named_before_a_step_is_spoilt(tmp_path: Path) -> None:
    codes, errors = fail(tmp_path, [], task="UnusedDigits")
    assert codes == [Exit.USAGE] * 2
    assert "Rank 0 got no gradient for some weights in step 0" in errors
    assert "Give --find-unused-parameters" in errors
    assert len(errors.splitlines()) == 1


def test_rank_0s_running_statistics_can_be_everybodys(tmp_path: Path) -> None:
    shared, broadcast = (
        train(tmp_path / str(len(flags)), flags, task="NormalizedDigits") for flags in ([], ["--broadcast-buffers"])
    )
    assert broadcast.losses == pytest.approx(shared.losses, rel=1e-4)
    assert broadcast.summary["loss"] != pytest.approx(shared.summary["loss"], rel=1e-4)


def test_synchronous_against_asynchronous(ddp: Ended, tmp_path: Path) -> None:
    """The ranks' losses drift from those of DDP, and the model still learns."""
    local = train(tmp_path, ["--strategy", "local-sgd", "--sync-steps", "8"])
    assert local.losses != pytest.approx(ddp.losses, rel=1e-6)
    assert local.losses == pytest.approx(ddp.losses, rel=0.05)
    assert EXACTLY_ONCE.items() <= local.summary.items()


def saved_steps(directory: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in directory.glob("step-*"))


def test_local_sgd_saves_at_synchronisations_alone_and_goes_on_from_them(tmp_path: Path) -> None:
    flags = ["--strategy", "local-sgd", "--sync-steps", "5", "--momentum", "0.9", "--keep", "99"]
    saving = ["--checkpoint-steps", "1", "--checkpoint-dir"]
    undisturbed = train(tmp_path / "whole", [*flags, *saving, str(tmp_path / "whole/c")])
    # Rank 0 continues alone until the next synchronisation.
    saving.append(str(tmp_path / "killed/c"))
    killed = train(tmp_path / "killed", [*flags, *saving], task="DyingDigits", fatal_batch=13)
    # After every fifth step, an epoch of 23, and the run.
    assert saved_steps(tmp_path / "whole/c") == [5, 10, 15, 20, 23, 24]
    assert set(saved_steps(tmp_path / "killed/c")) <= {5, 10, 15, 20, 23, 24}
    assert killed.losses == undisturbed.losses[-len(killed.losses) :]
    assert killed.summary["loss"] == undisturbed.summary["loss"]
    assert EXACTLY_ONCE.items() <= killed.summary.items()
    assert 0 < killed.summary["lost_steps"] < 24


def test_local_sgd_that_is_told_to_stop_leaves_at_a_synchronisation(tmp_path: Path) -> None:
    flags = [*COMMON, "--task", f"{TASKS}PlainDigits", "--log-steps", "1", "--max-steps", "100000", "--epochs", "9999"]
    flags += ["--strategy", "local-sgd", "--sync-steps", "7", "--checkpoint-dir", str(tmp_path / "c")]
    with WorkerGroup(2, flags, directory=tmp_path) as group:
        group.wait_for_step(10)
        group.ranks[1].send_signal(signal.SIGTERM)
        assert group.finish() == [Exit.TERMINATED] * 2, group.stderr()
    [saved] = saved_steps(tmp_path / "c")
    assert saved % 7 == 0 or saved % 23 == 0


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param(["--strategy", "manual", "--micro-batch", "3"], id="manual, micro-batches"),
        pytest.param(["--clip-norm", "0.2", "--schedule", "linear", "--precision", "bf16"], id="clipping, bf16"),
    ],
)
def test_a_killed_run_ends_as_an_undisturbed_one(flags: list[str], tmp_path: Path) -> None:
    saving = ["--checkpoint-steps", "4", "--checkpoint-dir"]
    undisturbed = train(tmp_path / "whole", [*flags, *saving, str(tmp_path / "whole/c")])
    killed = train(tmp_path / "killed", [*flags, *saving, str(tmp_path / "killed/c")], kill_at=10)
    assert killed.losses == undisturbed.losses[-len(killed.losses) :]
    assert killed.summary["loss"] == undisturbed.summary["loss"]
    assert EXACTLY_ONCE.items() <= killed.summary.items()
