"""Programs that a test runs to their end."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def captured(command: Sequence[str | Path], *, check: bool = False, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program, and return its exit code and what it has printed. The options are those of ``subprocess.run``."""
    return subprocess.run(command, capture_output=True, text=True, check=check, **options)
