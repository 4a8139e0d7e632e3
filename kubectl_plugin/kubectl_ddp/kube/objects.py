"""Kubernetes objects as JSON, and all objects of one job at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as JSON: apiVersion, kind, metadata, spec, status."""


@dataclass(frozen=True, slots=True)
class Queued:
    """Position of a job in a queue of Kueue."""

    name: str
    """Name of the LocalQueue."""
    is_admitted: bool
    """True if Kueue has admitted the job. Kueue may evict it later."""
    position: int | None = None
    """Position among the jobs that wait for the same quota, from 1. ``None`` if it does not wait or the position is
    unknown.
    """
    is_held: bool = False
    """True if the job is suspended through Kueue (``active: false``) and waits only to be resumed."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Objects of one job at one moment."""

    job: Object
    """Root object (for example a PyTorchJob), with its status."""
    pods: tuple[Object, ...]
    """Worker and store pods, with their status. The label ``contract.Label.ROLE`` distinguishes them."""
    events: tuple[Object, ...] = ()
    """Events about the job and its pods, oldest first."""
    queued: Queued | None = None
    """Position in a queue; ``None`` if the job is in no queue."""
