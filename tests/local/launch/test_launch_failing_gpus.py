"""A fault of a GPU, in real processes, with imitations of the driver's libraries: no GPU has been used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Exit
from ddp_trainer.launch import failures
from tests import fake_nvml
from tests.local.workloads import train_gpu_fault
from tests.support.fake_driver import compiled
from tests.support.launch_harness import Stage

FAILS_ONCE = """
import os
os.write(1, f"runs {os.environ['DDP_GENERATION']}\\n".encode())  # print writes a line in pieces
if os.environ["RANK"] == "1" and os.environ["DDP_GENERATION"] == "1":
    raise RuntimeError("CUDA error: uncorrectable ECC error encountered")
if os.environ["DDP_GENERATION"] == "1":
    import time
    time.sleep(600)
"""


FALLS_ILL = """
import os, sys, time
generation = os.environ["DDP_GENERATION"]
if generation == os.environ.get("FAILS_IN"):
    os.replace(os.environ["ILL"], os.environ["FAKE_NVML"])
    raise ValueError("nothing about GPUs")
os.write(1, f"runs {generation} of {os.environ['WORLD_SIZE']}\\n".encode())
while not os.path.exists(sys.argv[1]):
    time.sleep(0.02)
"""
"""After it has failed, the driver wants a GPU to be reset."""


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
    document = json.loads((tmp_path / "termination").read_text())
    assert (document["reason"], document["host"], document["pod_exit_code"]) == ("gpu_fault", "node-b", 173)
    sentence = "GPU 1 of node-b does not work: CUDA error: uncorrectable ECC error encountered. Fix: cordon the node"
    assert document["message"].startswith(sentence)
    # A container that follows on this node starts no workers.
    again = stage.launch("--nproc-per-node", "2", "--max-restarts", "3", stage.script(FAILS_ONCE), **machine)
    assert again.code() == Exit.GPU_FAULT, again.output
    assert not any(line.startswith("runs") for line in again.lines)
    document = json.loads((tmp_path / "termination").read_text())
    assert (document["reason"], document["message"].startswith(sentence)) == ("gpu_fault", True)


RESET = {"nvmlDeviceGetRemappedRows": "0 1 1 0"}
SENTENCE = "The preflight's check gpu-health fails. worker-{}: GPU 0 (NVIDIA H100 80GB HBM3) is to be reset; fix: drain"


def a_machine_that_falls_ill(tmp_path: Path, **ill: str) -> dict[str, str]:
    """Variables of a machine with one GPU, of which NVML tells something else after the failure."""
    machine = a_machine(tmp_path, "") | {"CUDA_VISIBLE_DEVICES": "0", "FAKE_NVML": str(tmp_path / "nvml")}
    fake_nvml.compiled(tmp_path / "driver")
    fake_nvml.answers(tmp_path / "nvml", fake_nvml.HEALTHY)
    fake_nvml.answers(tmp_path / "ill", {**fake_nvml.HEALTHY, **ill})
    return machine | {"ILL": str(tmp_path / "ill")}


def test_a_node_that_is_not_fit_after_a_failure_leaves_and_one_that_survived_is_not_looked_at(
    stage: Stage, tmp_path: Path
) -> None:
    machine = a_machine_that_falls_ill(tmp_path, **RESET)
    stage.store("--first-seconds", "600")  # for both nodes
    flags = ["--preflight", "strict", stage.script(FALLS_ILL), stage.done()]
    first = stage.agent(0, *flags, nnodes="1:2", **machine)
    second = stage.agent(1, *flags, nnodes="1:2", FAILS_IN="1", **machine)
    assert second.code() == Exit.GPU_FAULT, second.output
    document = json.loads((tmp_path / "termination").read_text())
    assert (document["reason"], document["pod_exit_code"], document["message"].startswith(SENTENCE.format(1))) == (
        "gpu_fault",
        173,
        True,
    )
    first.line("runs 2 of 1")  # whose GPUs are as ill by the same file, and whose worker has not failed
    stage.finish()
    assert first.code() == 0, first.output


@pytest.mark.parametrize(
    ("care", "ill", "sentence"),
    [
        ("warn", RESET, SENTENCE.format(0)),
        ("strict", {"nvmlDeviceGetCurrentClocksEventReasons": "0x40"}, "The GPUs of node-b answer"),
    ],
)
def test_a_node_that_is_fit_after_a_failure_or_only_warned_of_joins_again(
    stage: Stage, tmp_path: Path, care: str, ill: dict[str, str], sentence: str
) -> None:
    machine = a_machine_that_falls_ill(tmp_path, **ill) | {"DDP_POD_NAME": "worker-0", "FAILS_IN": "1"}
    stage.finish()
    run = stage.launch("--max-restarts", "3", "--preflight", care, stage.script(FALLS_ILL), stage.done(), **machine)
    assert run.code() == 0, run.output
    assert sum(sentence in line for line in run.lines) == 1, run.output
    assert "runs 2 of 1" in run.lines


def test_the_node_whose_gpu_fails_in_a_step_is_named_and_the_rank_that_waits_for_it_goes_on(
    stage: Stage, tmp_path: Path
) -> None:
    task = ("--task", f"{train_gpu_fault.__name__}:{train_gpu_fault.FailingGpu.__name__}", "--device", "cpu")
    flags = ("--global-batch", "36", "--batch-slices", "2", "--max-steps", "6", "--evaluate-every", "100")
    program = ("--nproc-per-node", "1", "-m", "ddp_trainer", "train", *task, *flags)
    machine = a_machine(tmp_path, "0 ecc\n")
    survivor = {"DDP_RUN_DIR": str(tmp_path / "whole"), "DDP_TERMINATION_LOG": str(tmp_path / "termination-of-whole")}
    stage.store()
    waiting = stage.agent(0, *program, DDP_NODE_NAME="node-a", **survivor)
    failing = stage.agent(1, *program, **machine)
    assert failing.code() == Exit.GPU_FAULT, failing.output
    document = json.loads((tmp_path / "termination").read_text())
    named = ("reason", "rank", "host", "pod", "exit_code", "pod_exit_code", "generation")
    assert [document[name] for name in named] == ["gpu_fault", 1, "node-b", "worker-1", 173, 173, 1]
    assert document["message"].startswith(
        "GPU 0 of node-b does not work: CUDA error: uncorrectable ECC error encountered."
    )
    replacement = stage.agent(2, *program, DDP_NODE_NAME="node-c")
    # Without a checkpoint: the rank that waited has kept its process and its three steps.
    waiting.line("resumed after step 3")
    assert [waiting.code(), replacement.code()] == [0, 0]
    # Its own node has noted the lost peer as what it is: a consequence, and later than the fault.
    lost, fault = (json.loads((tmp_path / node / "error.json").read_text()) for node in ("whole", "run"))
    assert lost["reason"] in failures.CONSEQUENCES
    assert (fault["reason"], fault["timestamp"] < lost["timestamp"]) == ("gpu_fault", True)
    document = json.loads((tmp_path / "termination-of-whole").read_text())
    assert (document["result"], document["steps"], document["samples_repeated"]) == ("succeeded", 6, 0)
