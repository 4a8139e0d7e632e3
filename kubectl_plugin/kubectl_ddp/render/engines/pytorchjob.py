"""Engine for Kubeflow's PyTorchJob, worker-only and elastic."""

from __future__ import annotations

from typing import Final

from kubectl_ddp import roots
from kubectl_ddp.render.engines.engine import EngineTemplates

RENDERING: Final = EngineTemplates(root=roots.PYTORCHJOB, template="pytorchjob.yaml.j2", restart_policy=None)
