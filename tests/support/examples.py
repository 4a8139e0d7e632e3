"""The job files of ``manifests/examples``, and which of them need more than this project brings."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tools.docs.examples import JOB_FILE

EXAMPLES: Final = Path(__file__).parents[2] / "manifests" / "examples"
JOB_FILES: Final = sorted(EXAMPLES.glob(f"*{JOB_FILE}"))


def needs_more(job_file: Path) -> bool:
    """True if the first lines of a job file state what it needs; all others run unchanged."""
    return "\n# Needs " in job_file.read_text()


RUN_ANYWHERE: Final = [path for path in JOB_FILES if not needs_more(path)]
NEED_MORE: Final = [path for path in JOB_FILES if needs_more(path)]
