"""How what stands in the way of a release is said."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path


class CannotRelease(Exception):
    """Something that a release needs is missing or wrong; the message is a sentence that says what, and what to do."""


def call(*words: str | Path, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    """What a program prints. Raises CannotRelease with its last words where it fails or is not there."""
    line = " ".join(map(str, words[:3]))
    try:
        done = subprocess.run(words, cwd=cwd, env=environ, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise CannotRelease(f"{words[0]} is not installed, and '{line}' needs it.") from None
    if done.returncode != 0:
        raise CannotRelease(
            f"'{line} …' failed with exit code {done.returncode}:\n{(done.stderr or done.stdout)[-2000:]}"
        )
    return done.stdout
