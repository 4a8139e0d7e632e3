"""M: precisions against 32 bits, and the same bits after a resume."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from bench.gpu_checks.check_report import Bench
from bench.gpu_checks.launches import TASKS, checkpoint_weights, train_single_rank
from bench.harness import CannotMeasure

STEPS: Final = (40, 10)
"""Steps of a full check and of a small one."""
OFF_BY: Final = {"tf32": 0.01, "bf16": 0.03, "fp16": 0.03}
"""Precision → how far the last loss may be off from that in 32 bits."""


def run(bench: Bench) -> None:
    """Train in all precisions, and once in two parts, at the same time."""
    folder = bench.folder("text")
    (folder / "text.txt").write_text("".join(f"{n} times {n} is {n * n}.\n" for n in range(20_000)), encoding="utf-8")
    names = ("fp32", *(OFF_BY if bench.is_gpu else ()))
    with ThreadPoolExecutor(len(names) + 3) as pool:
        tasks = ("digits", f"{TASKS}:OverflowOnce") if bench.is_gpu else ()
        skipped = [pool.submit(_count_skipped_steps, bench, task) for task in tasks]
        losses = {name: pool.submit(_last_loss, bench, folder, name) for name in names}
        resumed = pool.submit(_count_unequal_weights, bench, folder)
        exact = losses.pop("fp32").result()
        bench.findings.require(f"fp32: the loss {exact:.4f} is a number", math.isfinite(exact))
        for name, future in losses.items():
            with _left_out(bench, name):
                off = abs(future.result() / exact - 1)
                bench.findings.at_most(f"{name}: last loss, off from that in fp32", off, OFF_BY[name])
        bench.findings.at_most("weights with other bits after a resume", resumed.result(), 0)
        if skipped:
            usual, forced = (count.result() for count in skipped)
            bench.findings.require(
                f"fp16: an overflow skips one step ({forced - usual} more)", holds=forced - usual == 1
            )


def _count_skipped_steps(bench: Bench, task: str) -> int:
    """Return the steps that a run in fp16 skips because of an overflow."""
    flags = ("--task", task, "--device", bench.device, "--precision", "fp16", "--max-steps", "60", "--epochs", "100")
    size = ("--global-batch", "64", "--batch-slices", "1", "--evaluate-every", "1000000")
    run = train_single_rank(*flags, *size, "--checkpoint-seconds", "inf", seconds=bench.seconds_left)
    return max((int(event["summary"]["skipped_steps"]) for _, event in run.events("summary")), default=0)


@contextlib.contextmanager
def _left_out(bench: Bench, name: str) -> Iterator[None]:
    """Report a precision that the trainer refuses here."""
    try:
        yield
    except CannotMeasure as error:
        if "precision" not in str(error):
            raise
        bench.findings.mark_unsupported(name, str(error)[-300:])


def _flags(bench: Bench, folder: Path, steps: int) -> tuple[str, ...]:
    return (
        *("--task", "text", "--data", str(folder), "--model", "gpt:layers=2,heads=2,width=64", "--window", "64"),
        *("--global-batch", "16", "--batch-slices", "2", "--schedule", "constant", "--warmup-steps", "5"),
        *("--device", bench.device, "--max-steps", str(steps), "--epochs", "1000", "--evaluate-every", "1000000"),
        *("--log-steps", "1", "--checkpoint-seconds", "inf"),
    )


def _last_loss(bench: Bench, folder: Path, precision: str) -> float:
    run = train_single_rank(
        *_flags(bench, folder, bench.size(*STEPS)), "--precision", precision, seconds=bench.seconds_left
    )
    return [float(event["loss"]) for _, event in run.events("step")][-1]


def _count_unequal_weights(bench: Bench, folder: Path) -> int:
    """Weights that differ between a run in one part and one in two."""
    end = bench.size(*STEPS)
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(_weights_after, bench, folder, parts) for parts in ((end,), (end // 2, end))]
    unbroken, parted = (run.result() for run in runs)
    return sum(int((unbroken[key] != parted[key]).sum()) for key in unbroken)


def _weights_after(bench: Bench, folder: Path, parts: tuple[int, ...]) -> dict[str, Any]:
    """Weights after a run that was ended and resumed after these steps."""
    name = "-".join(map(str, parts))
    saved = bench.directory / name
    for steps in parts:
        more = ("--deterministic", "--checkpoint-dir", str(saved))
        train_single_rank(*_flags(bench, folder, steps), *more, seconds=bench.seconds_left)
    return checkpoint_weights(saved, bench.directory / f"{name}.pt")
