"""Engine for Kubeflow Trainer's TrainJob, with a TrainingRuntime per job.

The runtimes of the Trainer support neither elasticity nor our exit codes, and a TrainJob can override only a few fields
of a pod. So each job has its own runtime with all settings, and the TrainJob sets the number of nodes.
"""

from __future__ import annotations

from typing import Final

from kubectl_ddp.kube import job_kinds
from kubectl_ddp.render.engines.engine import EngineTemplates

RENDERING: Final = EngineTemplates(
    root=job_kinds.TRAINJOB,
    template="trainjob.yaml.j2",
    before=("training-runtime.yaml.j2",),
    container="node",
    job_labels={"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"},
    limits_job=False,
)
"""Rendering settings. The Trainer finds its container by the name ``node``, and the Job by the label on its template.
"""
