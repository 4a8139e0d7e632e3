"""Engines that run a job on a cluster, and gang schedulers that start its nodes together."""

from __future__ import annotations

from enum import StrEnum

from kubectl_ddp.engines import Engine

__all__ = ["Engine", "Gang", "QueueResize"]


class Gang(StrEnum):
    """Scheduler that starts either the minimum number of nodes together or none."""

    NONE = "none"
    AUTO = "auto"
    """The first gang scheduler that the cluster serves."""
    KUEUE = "kueue"
    VOLCANO = "volcano"
    SCHEDULER_PLUGINS = "scheduler-plugins"
    KAI = "kai"
    NATIVE = "native"
    """Kubernetes' own scheduler, by Workload and PodGroup of scheduling.k8s.io."""


class QueueResize(StrEnum):
    """Time at which a job in a queue of Kueue may get another number of nodes."""

    START = "start"
    """With too little quota, the job starts with fewer nodes and keeps them."""
    RUNNING = "running"
    """The job starts with its minimum, and can be scaled while it runs."""
