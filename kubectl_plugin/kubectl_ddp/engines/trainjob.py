"""Engine for Kubeflow Trainer's TrainJob, with a TrainingRuntime per job.

The runtimes of the Trainer support neither elasticity nor our exit codes, and a TrainJob can override only a few fields
of a pod. So each job has its own runtime with all settings, and the TrainJob sets the number of nodes. The Trainer
finds its container by the name ``node``, and the Job by the label on its template.
"""

from __future__ import annotations

from typing import Final

from kubectl_ddp.engines.engine_kind import POD_JOB, EngineKind, Operator, Runtime

ENGINE: Final = EngineKind(
    name="trainjob",
    api_version="trainer.kubeflow.org/v1alpha1",
    kind="TrainJob",
    plural="trainjobs",
    product="Kubeflow Trainer 2.3",
    operator=Operator(
        name="Kubeflow Trainer",
        selector="app.kubernetes.io/name=trainer",
        manager="trainer.kubeflow.org/trainjob-controller",
    ),
    nodes=(("spec", "trainer", "numNodes"),),
    template=("spec", "template", *POD_JOB, "template"),
    runtime=Runtime(kind="TrainingRuntime", plural="trainingruntimes", file="training-runtime.yaml.j2"),
    active=("jobsStatus", "active"),
    pod_suffix="-node-0-{index}-00000",
    pod_label="jobset.sigs.k8s.io/jobset-name",
    file="trainjob.yaml.j2",
    container="node",
    job_labels={"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"},
    ttl_note="ttl removes its JobSet and its pods, but not the TrainJob: Kubeflow Trainer never deletes one.",
)
