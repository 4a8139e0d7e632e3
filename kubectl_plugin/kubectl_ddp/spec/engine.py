"""Who runs a job on a cluster, and who starts its nodes together: words that the user may say."""

from __future__ import annotations

from enum import StrEnum


class Engine(StrEnum):
    """The kind of object that a job becomes; each runs the same pods with the same exit codes."""

    AUTO = "auto"
    """The first of the others that the cluster serves."""
    PYTORCHJOB = "pytorchjob"
    """Kubeflow training operator, v1."""
    TRAINJOB = "trainjob"
    """Kubeflow Trainer, v2."""
    JOBSET = "jobset"
    """JobSet, without Kubeflow."""
    JOB = "job"
    """Kubernetes' own Indexed Job; needs no operator."""


class Gang(StrEnum):
    """Who sees to it that the least number of nodes starts together, or not at all."""

    NONE = "none"
    AUTO = "auto"
    """The first of the others that the cluster serves."""
    KUEUE = "kueue"
    VOLCANO = "volcano"
    SCHEDULER_PLUGINS = "scheduler-plugins"
    KAI = "kai"
