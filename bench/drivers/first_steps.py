"""Starts of a compiled and of an uncompiled run under ``ddp-launch``, up to their first committed step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.harness import CannotMeasure
from ddp_trainer.common.constants import Env

SCRIPT: Final = Path(__file__).parents[1] / "scripts" / "first_step.py"
LIMIT_SECONDS: Final = 900
TEXT_BYTES: Final = 1 << 18


@dataclass(frozen=True, slots=True)
class FirstStepModel:
    """A GPT, and its global batch."""

    model: str
    window: int
    batch: int


MODELS: Final = {
    "small": FirstStepModel("gpt", 128, 16),
    "medium": FirstStepModel("gpt:layers=2,width=1024,heads=8", 256, 16),
}
"""0.8 million weights, and 25 million."""


def write_text(folder: Path) -> None:
    """Write a text to train on."""
    folder.mkdir()
    (folder / "text").write_bytes(b"".join(b"%d " % number for number in range(TEXT_BYTES // 6)))


def first_step(directory: Path, size: FirstStepModel, *, cache: Path | None) -> dict[str, float]:
    """Return the wall and processor seconds of one rank until its first step is committed.

    Args:
        directory: Directory with the folder ``text``, for this run's files.
        size: The model.
        cache: Compile cache; None to train uncompiled.

    Raises:
        CannotMeasure: The run failed.
    """
    result = directory / "result"
    result.unlink(missing_ok=True)
    environ = os.environ | {"BENCH_STARTED": str(time.time()), "BENCH_RESULT": str(result), "OMP_NUM_THREADS": "1"}
    environ |= {} if cache is None else {str(Env.COMPILE_CACHE): str(cache)}
    words = [directory / "text", size.model, size.window, size.batch, "plain" if cache is None else "compile"]
    launch = [sys.executable, "-m", "ddp_trainer", "launch", "--standalone", "--nproc-per-node", "1"]
    done = subprocess.run(
        [*launch, str(SCRIPT), *map(str, words)],
        env=environ, cwd=SCRIPT.parents[2], capture_output=True, text=True, timeout=LIMIT_SECONDS, check=False,
    )  # fmt: skip
    if not result.exists():
        raise CannotMeasure(f"A run of {size.model} failed: {(done.stdout + done.stderr)[-1000:]}")
    taken: dict[str, float] = json.loads(result.read_text())
    return taken
