"""I: too few GPUs, one that is not there, none by choice, and one per worker: the CPU is taken by choice alone."""

from __future__ import annotations

from typing import Final

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.launches import LAUNCH, TASKS, TRAIN, Running
from bench.gpu_checks.tasks import SUMS_FLAGS

STEPS: Final = 5
REFUSED: Final = ("one rank too many", "a GPU that is not there")
"""Launches that must fail on a machine with a GPU."""


def run(bench: Bench) -> None:
    """Launch all four at the same time."""
    import torch

    program = (*TRAIN, "--log-json", "--task", f"{TASKS}:Sums", *SUMS_FLAGS, "--max-steps", str(STEPS))
    count = torch.cuda.device_count() if bench.is_gpu else 1
    runs = {
        "one rank too many": _launch(program, count + 1),
        "a GPU that is not there": _launch(program, 1, CUDA_VISIBLE_DEVICES=str(count + 6)),
        "no GPU by choice": _launch(program, 1, CUDA_VISIBLE_DEVICES=""),
        "virtual local rank": _launch(program, 1, "--virtual-local-rank"),
    }
    try:
        codes = {name: launch.wait(bench.seconds_left) for name, launch in runs.items()}
    finally:
        for launch in runs.values():
            launch.close()
    for name, launch in runs.items():
        devices, code, is_refused = devices_of(launch), codes[name], bench.is_gpu and name in REFUSED
        if is_refused:
            bench.findings.require(f"{name}: it did not train ({devices or 'no device'})", not devices)
            bench.findings.require(f"{name}: it ended with an error (exit code {code})", code not in {None, 0})
            bench.findings.require(f"{name}: the message names GPUs", "GPU" in launch.output)
        else:
            expected = "cuda:0" if bench.is_gpu and name == "virtual local rank" else "cpu"
            bench.findings.require(f"{name}: it trained on {expected} ({devices or 'nothing'})", devices == {expected})
            bench.findings.require(f"{name}: it ended with 0 (exit code {code})", code == 0)


def _launch(program: tuple[str, ...], ranks: int, *flags: str, **more: str) -> Running:
    where = ("--standalone", "--nproc-per-node", str(ranks), "--max-restarts", "0", "--no-lint")
    return Running([*LAUNCH, *where, *flags, *program], **more)


def devices_of(run: Running) -> set[str]:
    """Return the devices that the trainer printed as its own."""
    return {str(event["device"]) for _, event in run.events("started")}
