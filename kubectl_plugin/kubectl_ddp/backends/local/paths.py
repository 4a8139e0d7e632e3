"""Directory of this machine's jobs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path


def local_jobs_directory(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the directory with one subdirectory per local job (XDG base directory specification)."""
    state = environ.get("XDG_STATE_HOME", "")
    home = Path(state) if state.startswith("/") else Path(environ.get("HOME", "~")).expanduser() / ".local" / "state"
    return home / "kubectl-ddp" / "jobs"


def local_job_names(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Return the sorted names of this machine's jobs; empty if the directory is missing or unreadable."""
    try:
        with os.scandir(local_jobs_directory(environ)) as entries:
            return sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except OSError:
        return []
