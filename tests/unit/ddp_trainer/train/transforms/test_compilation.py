"""Training with --compile, and without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ddp_trainer.common.constants import Exit

COMPILED = ["--max-steps", "3", "--log-steps", "1", "--log-json", "--compile"]


def train(flags: list[str], **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ddp_trainer", "train", *flags]
    return subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=200, check=False)


def test_a_compiled_model_trains() -> None:
    done = train([*COMPILED, "--compile-backend", "aot_eager"])
    assert done.returncode == 0, done.stderr
    assert '"event": "summary"' in done.stdout


@pytest.mark.parametrize("fallback", [False, True])
def test_a_model_that_cannot_be_compiled_says_so_and_trains_on_request(fallback: bool, tmp_path: Path) -> None:
    """With a compiler that is not there."""
    missing = {"CXX": str(tmp_path / "no-such-compiler"), "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    done = train([*COMPILED, *(["--compile-fallback"] if fallback else [])], **missing)
    output = done.stdout if fallback else done.stderr
    assert done.returncode == (0 if fallback else Exit.USAGE), done.stderr
    assert ("and is trained uncompiled: " if fallback else "error: The model could not be compiled: ") in output
    assert fallback or len(done.stderr.splitlines()) == 1
