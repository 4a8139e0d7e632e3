"""Versioned JSON of jobs for ``-o json``, a stable interface for scripts. Units are in the names; times are Unix
times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import StrEnum
from typing import Any, Final

from kubectl_ddp.kube.timestamps import timestamp
from kubectl_ddp.status.job_state import JobState
from kubectl_ddp.status.rank_status import RankState

API_VERSION: Final = "cli.ddp/v1"


def job_to_dict(state: JobState) -> dict[str, Any]:
    """Return the JSON of one job."""
    fields = {"metadata": _metadata(state)} | asdict(replace(state, ranks=()), dict_factory=_plain)
    fields["ranks"] = [_rank(each) for each in state.ranks]
    fields["progress"] = state.progress
    return {"apiVersion": API_VERSION, "kind": "JobState", **fields}


def _metadata(state: JobState) -> dict[str, Any]:
    """Return name, namespace, uid and creation time where tools for Kubernetes objects expect them."""
    return {
        "name": state.name,
        "namespace": state.namespace,
        "uid": state.uid,
        "creationTimestamp": timestamp(state.created),
    }


def _rank(rank: RankState) -> dict[str, Any]:
    """Return the JSON of one rank. ``asdict`` on thousands of ranks takes as long as querying them."""
    return _plain([(name, getattr(rank, name)) for name in RankState.__dataclass_fields__])


def _plain(items: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert enum values to strings, which the YAML writer requires."""
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in items}


def job_list_to_dict(states: Sequence[JobState]) -> dict[str, Any]:
    """Return the JSON of several jobs."""
    return {"apiVersion": API_VERSION, "kind": "JobStateList", "items": [job_to_dict(state) for state in states]}
