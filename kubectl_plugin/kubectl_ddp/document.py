"""Jobs as the versioned JSON of ``-o json``: what scripts may rely on. Units are in the names, times are Unix times."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from kubectl_ddp.state import JobState

API_VERSION: Final = "cli.ddp/v1"


def job_document(state: JobState) -> dict[str, Any]:
    """One job."""
    fields = asdict(state)
    fields["progress"] = state.progress
    return {"apiVersion": API_VERSION, "kind": "JobState", **fields}


def job_list_document(states: Sequence[JobState]) -> dict[str, Any]:
    """Many jobs."""
    return {"apiVersion": API_VERSION, "kind": "JobStateList", "items": [job_document(state) for state in states]}
