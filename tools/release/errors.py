"""Errors of a release, and of the programs that it calls."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path


class CannotRelease(Exception):
    """Something that a release needs is missing or wrong; the message names it and the fix."""


def run_program(*words: str | Path, cwd: Path | None = None, environ: Mapping[str, str] | None = None) -> str:
    """Return the stdout of a program. Raises CannotRelease with its stderr if it fails or is missing."""
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
