"""Engine for Kubernetes' Indexed Job: no operator, and a headless Service that gives every node a DNS name."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.kube import job_kinds
from kubectl_ddp.render.engines.engine import EngineTemplates

RENDERING: Final = EngineTemplates(
    root=job_kinds.JOB, template="job.yaml.j2", beside=("nodes-service.yaml.j2",), has_subdomain=True
)
