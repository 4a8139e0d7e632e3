"""Steps of the trainer's GPT by several ranks, and what ``kubectl ddp plan`` foretells of the neediest of them."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from bench.drivers.process_memory import RETURNING
from bench.harness import CannotMeasure
from ddp_trainer.common.parallel_dims import Layout
from kubectl_ddp.plan.choice import Choice
from kubectl_ddp.plan.memory import Memory, memory
from kubectl_ddp.plan.recomputation import NOTHING, Recomputation
from kubectl_ddp.plan.shape import Shape
from kubectl_ddp.plan.work import Precision, Work

STEPS = 3
VOCABULARY = 256
"""Vocabulary size of the task ``text``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayoutCase:
    """A model over ranks, and what a step of it is."""

    layout: str
    layers: int
    width: int
    heads: int
    window: int
    samples: int
    """Number of samples of one pass on a rank."""
    passes: int = 1
    """Number of passes of a step; for a pipeline, its micro-batches."""
    again: Recomputation = NOTHING

    @property
    def batch(self) -> int:
        """Samples of a step."""
        return self.samples * self.passes * Layout.parse(self.layout).data_size

    @property
    def argv(self) -> list[str]:
        """Flags of the trainer."""
        layout = Layout.parse(self.layout)
        return [
            *("--task", "text", "--window", str(self.window), "--parallel", self.layout),
            *("--model", f"gpt:layers={self.layers},width={self.width},heads={self.heads}"),
            *("--global-batch", str(self.batch), "--micro-batch", str(self.samples)),
            *("--batch-slices", str(layout.data_size)),
            *("--max-steps", str(STEPS), "--checkpoint-seconds", "inf", "--threads", "1", "--device", "cpu"),
            *self.again.flags,
        ]


def estimate_memory(laid: LayoutCase) -> Memory:
    """Return the plan's memory estimate for the rank that needs the most."""
    shape = Shape(layers=laid.layers, hidden=laid.width, heads=laid.heads, vocabulary=VOCABULARY, window=laid.window)
    work = Work(sequence=laid.window, global_batch=laid.batch, precision=Precision.FP32)
    layout = Layout.parse(laid.layout)
    return memory(shape, work, Choice(layout, laid.samples, laid.passes, laid.again))


def measure_peak_bytes(laid: LayoutCase) -> int:
    """Return the largest number of bytes that a rank's tensors took at one time during its steps.

    Raises:
        CannotMeasure: a rank failed.
    """
    with tempfile.TemporaryDirectory(prefix="ddp-bench-plan-") as name:
        directory = Path(name)
        (directory / "text").mkdir()
        (directory / "text" / "any.txt").write_bytes(b"text " * laid.window * laid.batch)
        held = directory / "held"
        held.mkdir()
        launch = [sys.executable, "-m", "ddp_trainer", "launch", "--standalone"]
        ranks = ["--nproc-per-node", str(Layout.parse(laid.layout).world), "-m", "bench.workloads.layout_rank"]
        done = subprocess.run(
            [*launch, *ranks, *laid.argv, "--data", str(directory / "text")],
            capture_output=True,
            text=True,
            check=False,
            env=_environment(held),
        )
        if done.returncode:
            raise CannotMeasure(f"{laid.layout} ended with {done.returncode}: {done.stderr[-500:].strip()}")
        return max(int(file.read_text()) for file in held.iterdir())


def _environment(held: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("DDP_", "PET_", "OMP_"))}
    return {**inherited, **RETURNING, "DDP_BENCH_BYTES": str(held), "DDP_BENCH_STEPS": str(STEPS)}
