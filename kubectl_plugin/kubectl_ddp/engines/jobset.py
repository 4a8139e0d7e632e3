"""Engine for a JobSet of one Indexed Job."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.engines.engine_kind import POD_JOB, EngineKind, Operator

ENGINE: Final = EngineKind(
    name="jobset",
    api_version="jobset.x-k8s.io/v1alpha2",
    kind="JobSet",
    plural="jobsets",
    product="JobSet",
    operator=Operator(
        name="JobSet's controller",
        selector="app.kubernetes.io/name=jobset",
        manager="jobset.sigs.k8s.io/jobset-controller",
    ),
    nodes=((*POD_JOB, "parallelism"), (*POD_JOB, "completions")),
    template=(*POD_JOB, "template"),
    conditions={"Completed": "Succeeded", "Failed": "Failed", "Suspended": "Suspended"},
    active=("replicatedJobsStatus", "active"),
    pod_suffix="-node-0-{index}-00000",
    pod_label="jobset.sigs.k8s.io/jobset-name",
    file="jobset.yaml.j2",
    scaling_gate="ElasticJobSet",
)
