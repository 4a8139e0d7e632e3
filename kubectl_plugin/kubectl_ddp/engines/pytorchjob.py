"""Engine for Kubeflow's PyTorchJob, worker-only and elastic."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.engines.engine_kind import EngineKind, Operator

ENGINE: Final = EngineKind(
    name="pytorchjob",
    api_version="kubeflow.org/v1",
    kind="PyTorchJob",
    plural="pytorchjobs",
    product="Kubeflow's training operator 1.9",
    operator=Operator(
        name="Kubeflow's training operator",
        selector="control-plane=kubeflow-training-operator",
        manager="kubeflow.org/training-operator",
    ),
    suspend=("spec", "runPolicy", "suspend"),
    managed_by=("spec", "runPolicy", "managedBy"),
    nodes=(("spec", "pytorchReplicaSpecs", "Worker", "replicas"),),
    template=("spec", "pytorchReplicaSpecs", "Worker", "template"),
    conditions={word: word for word in ("Created", "Running", "Restarting", "Suspended", "Succeeded", "Failed")},
    pod_suffix="-worker-{index}",
    pod_label="training.kubeflow.org/job-name",
    index_label="",
    file="pytorchjob.yaml.j2",
    restart_policy=None,
    is_scalable=True,
)
