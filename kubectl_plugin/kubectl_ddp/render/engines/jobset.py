"""Engine for a JobSet of one Indexed Job."""

from __future__ import annotations

from typing import Final

from kubectl_ddp import roots
from kubectl_ddp.render.engines.engine import EngineTemplates

RENDERING: Final = EngineTemplates(root=roots.JOBSET, template="jobset.yaml.j2")
