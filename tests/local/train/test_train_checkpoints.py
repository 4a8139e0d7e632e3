"""Checkpoints of real runs: on pods' own volumes, on a full disk, and with a newer worker group about."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ddp_trainer.common.constants import CheckpointScope, Env, Exit
from ddp_trainer.train.checkpoint.write_lease import WriteLease
from tests.local.workloads.train_group import WorkerGroup
from tests.support.programs import captured


def pod(directory: Path) -> dict[str, str]:
    return {Env.CHECKPOINT_DIR: str(directory), Env.CHECKPOINT_SCOPE: CheckpointScope.POD}


def steps(directory: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in directory.glob("step-*"))


@pytest.mark.any_torch
def test_the_newest_checkpoint_of_any_pod_is_where_all_go_on(tmp_path: Path) -> None:
    volumes = [tmp_path / name for name in ("a", "b", "c")]
    flags = ["--max-steps", "6", "--checkpoint-steps", "2", "--global-batch", "32"]
    with WorkerGroup(2, flags, directory=tmp_path, pods=[pod(volumes[0]), pod(volumes[1])]) as group:
        assert group.finish() == [0, 0], group.stderr()
    assert steps(volumes[0]) == steps(volumes[1]) == [2, 4, 6]
    # Pod 0 lost its newest, pod 1 has it, and pod 2 is new.
    shutil.rmtree(volumes[0] / "step-00000006")
    (volumes[0] / "step-00000004" / "state.pt").write_bytes(b"torn")
    flags[1] = "8"
    pods = [pod(volume) for volume in volumes]
    with WorkerGroup(3, flags, directory=tmp_path, generation=1, pods=pods) as group:
        (started,) = [event for event in group.events() if event["event"] == "started"]
        assert group.finish() == [0, 0, 0], group.stderr()
    assert started["resumed_step"] == 6
    assert [steps(volume)[-1] for volume in volumes] == [8, 8, 8]


def test_a_checkpoint_of_another_seed_is_refused_by_every_rank(tmp_path: Path) -> None:
    flags = ["--max-steps", "1", "--checkpoint-dir", str(tmp_path / "c")]
    with WorkerGroup(1, flags, directory=tmp_path) as group:
        assert group.finish() == [0]
    with WorkerGroup(2, [*flags, "--seed", "5"], directory=tmp_path, generation=1) as group:
        assert group.finish() == [Exit.USAGE, Exit.USAGE]
        for rank in range(2):
            assert "was written with seed 0, and this run has 5. Give --seed 0" in group.stderr(rank)
            assert len(group.stderr(rank).splitlines()) == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system that holds one checkpoint of the digits (322 KB) and no second one."""
    path = tmp_path / "disk"
    path.mkdir()
    mounted = captured(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(path)])
    if mounted.returncode != 0:
        pytest.skip(f"mounting a small file system needs more rights: {mounted.stderr.strip()}")
    yield path
    subprocess.run(["umount", str(path)], check=True)


def test_a_full_disk_is_told_of_and_the_older_checkpoint_kept(small_disk: Path, tmp_path: Path) -> None:
    flags = ["--max-steps", "6", "--checkpoint-steps", "2", "--checkpoint-dir", str(small_disk)]
    flags += ["--summary", str(tmp_path / "summary"), "--log-steps", "1"]
    with WorkerGroup(2, flags, directory=tmp_path) as group:
        events = list(group.events())
        assert group.finish() == [Exit.FAILURE, Exit.SUCCESS]
        errors = group.stderr(0)
    messages = [event["text"] for event in events if event["event"] == "note"]
    full = f"No checkpoint could be saved in {small_disk}: No space left on device."
    assert messages == [f"{full} Training continues; older checkpoints are kept."] * 2
    assert errors.startswith(f"error: The final state, of step 6, could not be saved in {small_disk}: No space left")
    assert json.loads((tmp_path / "summary").read_text())["steps"] == 6
    assert steps(small_disk) == [2]
    with WorkerGroup(1, flags, directory=tmp_path, generation=1) as group:
        (started,) = [event for event in group.events() if event["event"] == "started"]
    assert started["resumed_step"] == 2


def test_a_worker_group_that_was_superseded_leaves_without_writing(tmp_path: Path) -> None:
    directory = tmp_path / "c"
    flags = ["--epochs", "300", "--log-steps", "1", "--checkpoint-dir", str(directory), "--checkpoint-seconds", "3600"]
    with WorkerGroup(2, flags, directory=tmp_path) as group:
        group.wait_for_step(3)
        WriteLease(directory, generation=1, fence=1, run_id="test", token="newer").take()
        group.ranks[1].send_signal(signal.SIGTERM)
        codes = group.finish()
        errors = group.stderr(0)
    assert codes[0] == Exit.STALE_GENERATION
    assert codes[1] in {Exit.TERMINATED, Exit.RENDEZVOUS_LOST}
    assert "Generation 0 may no longer write" in errors
    assert "generation 1 has claimed it" in errors
    assert steps(directory) == []


def test_a_rank_whose_data_fail_says_why_and_its_peers_only_that(tmp_path: Path) -> None:
    with WorkerGroup(2, ["--task", "tests.local.workloads.train_waiting:FailingDigits"], directory=tmp_path) as group:
        assert group.finish() == [Exit.RENDEZVOUS_LOST, Exit.FAILURE]
        assert group.stderr(0).startswith("error: 1 of the other ranks failed in step 2. Read the errors")
        assert "OSError: [Errno 5] Input/output error" in group.stderr(1)
