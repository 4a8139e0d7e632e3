"""A count of how often weights were initialized."""

from __future__ import annotations

import os
from pathlib import Path

runs = 0
"""Number of runs in this process."""


def count() -> None:
    """One more; also a line more in the file that ``MADE`` names, if it does."""
    global runs  # noqa: PLW0603 - of this process
    runs += 1
    if file := os.environ.get("MADE"):
        with Path(file).open("a") as report:
            report.write(f"{os.getpid()}\n")
