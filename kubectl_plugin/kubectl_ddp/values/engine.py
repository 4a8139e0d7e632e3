"""Engines that run a job on a cluster, and gang schedulers that start its nodes together."""

from __future__ import annotations

from enum import StrEnum


class Engine(StrEnum):
    """Kind of the job object; all engines run the same pods with the same exit codes."""

    AUTO = "auto"
    """The first engine that the cluster serves."""
    PYTORCHJOB = "pytorchjob"
    """Kubeflow training operator, v1."""
    TRAINJOB = "trainjob"
    """Kubeflow Trainer, v2."""
    JOBSET = "jobset"
    """JobSet, without Kubeflow."""
    JOB = "job"
    """Kubernetes' Indexed Job; needs no operator."""


class Gang(StrEnum):
    """Scheduler that starts either the minimum number of nodes together or none."""

    NONE = "none"
    AUTO = "auto"
    """The first gang scheduler that the cluster serves."""
    KUEUE = "kueue"
    VOLCANO = "volcano"
    SCHEDULER_PLUGINS = "scheduler-plugins"
    KAI = "kai"
