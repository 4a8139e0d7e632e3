"""Engines that run a job on a cluster, and gang schedulers that start its nodes together."""

from __future__ import annotations

from enum import StrEnum

from kubectl_ddp.engines.registry import Engine

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
    """When Kueue may change the number of nodes of a job in its queue."""

    START = "start"
    """At the start: with too little quota, the job starts with fewer nodes and keeps them."""
    RUNNING = "running"
    """While it runs: the job starts with its minimum, and can be scaled."""
