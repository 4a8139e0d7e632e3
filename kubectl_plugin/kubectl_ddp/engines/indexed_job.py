"""Engine for Kubernetes' Indexed Job: no operator, and a headless Service that gives every node a DNS name."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.engines.engine_kind import EngineKind, Operator

ENGINE: Final = EngineKind(
    name="job",
    api_version="batch/v1",
    kind="Job",
    plural="jobs",
    least_kubernetes=(1, 31),  # a Job that succeeds with fewer nodes than it has
    operator=Operator(name="the cluster's controller manager", selector="", manager="kubernetes.io/job-controller"),
    nodes=(("spec", "parallelism"), ("spec", "completions")),
    template=("spec", "template"),
    active=("active",),
    pod_suffix="-{index}-00000",
    pod_label="batch.kubernetes.io/job-name",
    file="job.yaml.j2",
    has_subdomain=True,
    is_scalable=True,
    is_partially_admitted=True,
)
