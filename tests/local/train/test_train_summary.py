"""Every pod of a run reports its result, since any one of them may be the last."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.local.workloads.train_group import WorkerGroup

OWN = {"goodput", "seconds", "lost_seconds", "largest_badput", "spent"}
"""Each pod measures its own time."""


def test_every_pod_has_the_summary_and_no_rank_overwrites_it(tmp_path: Path) -> None:
    pods = [{"DDP_RUN_DIR": str(tmp_path / f"pod-{index}")} for index in range(2)]
    with WorkerGroup(2, ["--epochs", "1", "--global-batch", "256"], directory=tmp_path, pods=pods) as group:
        messages = [event for event in group.events() if event["event"] == "summary"]
        assert group.finish() == [0, 0], group.stderr()
    first, second = (json.loads((Path(pod["DDP_RUN_DIR"]) / "summary.json").read_text()) for pod in pods)
    assert first["result"] == "succeeded"
    assert first["samples_lost"] == first["samples_repeated"] == 0
    details = {name: value for name, value in first.items() if name not in OWN}
    assert {name: second[name] for name in details} == details
    assert len(messages) == 1


def test_a_run_whose_words_nobody_reads_succeeds_all_the_same(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    summary = tmp_path / "summary.json"
    command = [sys.executable, "-m", "ddp_trainer", "train", "--max-steps", "2", "--summary", str(summary)]
    try:
        done = subprocess.run(command, stdout=writing, stderr=writing, cwd=tmp_path, check=False)
    finally:
        os.close(writing)
    assert done.returncode == 0
    assert json.loads(summary.read_text())["result"] == "succeeded"
