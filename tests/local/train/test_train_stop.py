"""SIGTERM on one rank stops all ranks after the same step, which is saved; the run resumes from there."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from ddp_trainer.common.constants import Exit
from tests.local.workloads.train_group import WorkerGroup


def test_sigterm_on_one_rank_stops_all_after_the_same_step(tmp_path: Path) -> None:
    flags = ["--log-steps", "1", "--checkpoint-dir", str(tmp_path / "checkpoints"), "--global-batch", "32"]
    with WorkerGroup(2, [*flags, "--epochs", "300"], directory=tmp_path) as group:
        group.wait_for_step(5)
        group.ranks[1].send_signal(signal.SIGTERM)
        events = list(group.events())
        assert group.finish() == [Exit.TERMINATED, Exit.TERMINATED], group.stderr()
    last = max(event["step"] for event in events if event["event"] == "step")
    assert [path.name for path in (tmp_path / "checkpoints").glob("step-*")] == [f"step-{last:08d}"]
    with WorkerGroup(3, [*flags, "--max-steps", str(last + 3)], directory=tmp_path, generation=1) as group:
        (started,) = [event for event in group.events() if event["event"] == "started"]
        assert group.finish() == [Exit.SUCCESS] * 3, group.stderr()
    assert (started["resumed_step"], started["world_size"]) == (last, 3)


def test_ctrl_c_to_a_single_process_is_obeyed_with_its_code(tmp_path: Path) -> None:
    flags = ["--epochs", "300", "--log-steps", "1", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    with WorkerGroup(1, flags, directory=tmp_path) as group:
        group.wait_for_step(2)
        group.ranks[0].send_signal(signal.SIGINT)
        assert group.finish() == [130], group.stderr()
    assert list((tmp_path / "checkpoints").glob("step-*"))


def test_a_rank_that_waits_for_peers_leaves_at_once_when_told(tmp_path: Path) -> None:
    # The second rank never comes, so the first one is inside a call that Python cannot interrupt.
    alone = {"RANK": "0", "WORLD_SIZE": "2"}
    flags = ["--task", "tests.local.workloads.train_waiting:Digits"]
    with WorkerGroup(1, flags, directory=tmp_path, pods=[alone]) as group:
        group.wait_until_ready()
        group.ranks[0].send_signal(signal.SIGTERM)
        assert group.finish() == [Exit.TERMINATED]
        assert group.stderr() == "Stop requested before training began.\n"


def test_a_step_longer_than_the_grace_period_is_not_waited_for(tmp_path: Path) -> None:
    flags = ["--task", "tests.local.workloads.train_waiting:EndlessDigits"]
    with WorkerGroup(1, flags, directory=tmp_path, env={"DDP_GRACE_SECONDS": "0.5"}) as group:
        group.wait_until_ready()
        group.ranks[0].send_signal(signal.SIGTERM)
        assert group.finish() == [Exit.TERMINATED]
        assert "leaving without saving" in group.stderr()


def test_a_finished_run_ends_at_once_with_the_same_summary(tmp_path: Path) -> None:
    flags = ["--max-steps", "5", "--checkpoint-dir", str(tmp_path / "checkpoints")]
    summaries = []
    for generation, world in enumerate((2, 1)):
        own = [*flags, "--summary", str(tmp_path / f"summary{generation}")]
        with WorkerGroup(world, own, directory=tmp_path, generation=generation) as group:
            assert group.finish() == [Exit.SUCCESS] * world, group.stderr()
        summaries.append(json.loads((tmp_path / f"summary{generation}").read_text()))
    assert summaries[0] == summaries[1]
    assert summaries[0]["steps"] == 5
