"""Decisions of the controller, :class:`Resize`, :class:`Evict` and :class:`SetBudget`, and their limits of time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ddp_controller.running_job import Member, RunningJob


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Limits of time, in seconds."""

    settle: float = 10.0
    """Least time that a pod must be ready before the group relies on it."""
    patience: float = 120.0
    """Time to wait for a replacement before a pod may leave without one."""
    cooldown: float = 3.0
    """Least time between two changes of size by quota, per ClusterQueue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize:
    """Change the number of worker pods, together with annotations of the root object."""

    job: RunningJob
    size: int
    annotations: Mapping[str, str | None]
    """Annotation → new value; None removes it."""
    action: str
    """``surge``, ``settle``, ``shrink``, ``grow``, ``start`` or ``withdraw``."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evict:
    """Evict one pod through the eviction API, so that the job's PodDisruptionBudget counts."""

    job: RunningJob
    pod: Member
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetBudget:
    """Give the job's PodDisruptionBudget this size, or delete it."""

    job: RunningJob
    min_available: int | None
    """Pods that an eviction must leave; None for no PodDisruptionBudget."""


Decision = Resize | Evict | SetBudget
