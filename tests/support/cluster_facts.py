"""A cluster as its API server tells it, for tests of what is decided by it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.preflight.model import PreflightFacts, Subject, subject_of
from kubectl_ddp.render import render
from tests.support.jobs import a_job

GPU = "nvidia.com/gpu"


def a_subject(**changes: Any) -> Subject:
    """A job of two nodes, rendered, with changes."""
    spec = a_job(**changes)
    return subject_of(spec, render(spec, "run1"), "team")


def a_node(
    name: str,
    *,
    cpu: str = "16",
    memory: str = "64Gi",
    gpus: int = 0,
    labels: Mapping[str, str] | None = None,
    taint: str = "",
    **spec: Any,
) -> Object:
    """A machine; ``taint`` as in ``key=value:NoSchedule``."""
    key, _, effect = taint.rpartition(":")
    key, _, value = key.partition("=")
    taints = [{"key": key, "effect": effect} | ({"value": value} if value else {})] if taint else []
    more = {GPU: str(gpus)} if gpus else {}
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": taints, **spec},
        "status": {
            "allocatable": {"cpu": cpu, "memory": memory, "pods": "110", **more},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def a_pod(
    machine: str, *, job: str = "", cpu: str = "1", memory: str = "1Gi", gpus: int = 0, phase: str = "Running"
) -> Object:
    """A pod that has its machine."""
    wanted = {"cpu": cpu, "memory": memory} | ({GPU: str(gpus)} if gpus else {})
    labels = {"ddp.dev/job": job} if job else {}
    return {
        "metadata": {"name": f"{job or 'service'}-{machine}", "namespace": "team", "labels": labels},
        "spec": {"nodeName": machine, "containers": [{"name": "c", "resources": {"requests": wanted}}]},
        "status": {"phase": phase},
    }


def facts(**known: Any) -> PreflightFacts:
    """Facts about a cluster with a fixed set of nodes."""
    return PreflightFacts(**{"grows": False, **known})
