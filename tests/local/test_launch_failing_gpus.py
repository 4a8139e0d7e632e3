"""A fault of a GPU, in real processes, with a library that stands in for the driver's: no GPU has been used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from launch_harness import Stage, stage_of

from ddp_trainer.common.constants import Exit
from tests.fake_driver import compiled

FAILS_ONCE = """
import os
print("runs", os.environ["DDP_GENERATION"], flush=True)
if os.environ["RANK"] == "1" and os.environ["DDP_GENERATION"] == "1":
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
if os.environ["DDP_GENERATION"] == "1":
    import time
    time.sleep(600)
"""


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    yield from stage_of(tmp_path)


def a_machine(tmp_path: Path, faults: str) -> dict[str, str]:
    """Variables of a machine with two GPUs, of which some fail."""
    (tmp_path / "driver").mkdir()
    compiled(tmp_path / "driver")
    (tmp_path / "faults").write_text(faults)
    return {
        "LD_LIBRARY_PATH": str(tmp_path / "driver"),
        "FAKE_GPU_FAULT": str(tmp_path / "faults"),
        "CUDA_VISIBLE_DEVICES": "0,1",
        "DDP_NODE_NAME": "node-b",
        "DDP_RUN_DIR": str(tmp_path / "run"),
        "DDP_TERMINATION_LOG": str(tmp_path / "termination"),
        "DDP_METRICS_PORT": "0",
    }


def test_a_node_whose_gpu_fails_leaves_the_run_with_the_reason(stage: Stage, tmp_path: Path) -> None:
    machine = a_machine(tmp_path, "1 ecc\n")
    run = stage.launch("--nproc-per-node", "2", "--max-restarts", "3", stage.script(FAILS_ONCE), **machine)
    assert run.code() == Exit.GPU_FAULT, run.output
    told = json.loads((tmp_path / "termination").read_text())
    assert (told["reason"], told["host"], told["pod_exit_code"]) == ("gpu_fault", "node-b", 173)
    sentence = "GPU 1 of node-b does not work: CUDA error: uncorrectable ECC error encountered. Fix: cordon the node"
    assert told["message"].startswith(sentence)
    # A container that follows on this node starts no workers.
    again = stage.launch("--nproc-per-node", "2", "--max-restarts", "3", stage.script(FAILS_ONCE), **machine)
    assert again.code() == Exit.GPU_FAULT, again.output
    assert not any(line.startswith("runs") for line in again.lines)
    told = json.loads((tmp_path / "termination").read_text())
    assert (told["reason"], told["message"].startswith(sentence)) == ("gpu_fault", True)


def test_a_node_whose_gpus_answer_goes_on(stage: Stage, tmp_path: Path) -> None:
    machine = a_machine(tmp_path, "")
    run = stage.launch("--nproc-per-node", "2", "--max-restarts", "3", stage.script(FAILS_ONCE), **machine)
    assert run.code() == 0, run.output
    assert any("The GPUs of node-b answer; the node joins again." in line for line in run.lines)
    assert "runs 2" in run.lines
