"""Engine for Kubeflow's PyTorchJob, worker-only and elastic."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.kube import job_kinds
from kubectl_ddp.render.engines.engine import EngineTemplates

RENDERING: Final = EngineTemplates(root=job_kinds.PYTORCHJOB, template="pytorchjob.yaml.j2", restart_policy=None)
