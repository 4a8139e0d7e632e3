"""Kubeflow Trainer's TrainJob, with a TrainingRuntime of its own.

The runtimes that come with the Trainer know neither elasticity nor our exit codes, and a TrainJob cannot say them: what
a pod may be told from there is a short list. So each job brings its runtime, which is all the job there is; the
TrainJob says how many.
"""

from __future__ import annotations

from typing import Final

from kubectl_ddp import roots
from kubectl_ddp.render.engines.engine import EngineTemplates

RENDERING: Final = EngineTemplates(
    root=roots.TRAINJOB,
    template="trainjob.yaml.j2",
    before=("training-runtime.yaml.j2",),
    container="node",
    job_labels={"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"},
    limits_job=False,
)
"""The Trainer finds its container by the name ``node``, and the Job by the label on its template."""
