"""Engine for a JobSet of one Indexed Job."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.kube import job_kinds
from kubectl_ddp.render.engines.engine import EngineTemplates

RENDERING: Final = EngineTemplates(root=job_kinds.JOBSET, template="jobset.yaml.j2")
