"""What each value of the controller changes, a row per key."""

from __future__ import annotations

from typing import Final

from tests.render.platform_values import NODES, TOLERATION
from tests.support.chart_values import ABSENT, Row

_POD: Final = "Deployment/ddp-controller spec.template.spec"
_CONTAINER: Final = f"{_POD}.containers.0"
TRAINER: Final = ("trainer.kubeflow.org/v1alpha1/ClusterTrainingRuntime",)
_NODE: Final = "spec.template.spec.replicatedJobs.0.template.spec.template.spec"
_RUNTIME: Final = f"ClusterTrainingRuntime/ddp-torch {_NODE}.initContainers.0"
ROWS: Final = (
    Row("controller.enabled", False, "Deployment/ddp-controller", ABSENT),
    Row("controller.image.repository", "team/c", f"{_CONTAINER}.image", "team/c:0.1.0"),
    Row("controller.image.tag", "2", f"{_CONTAINER}.image", "ddp-controller:2"),
    Row(
        "controller.image.digest",
        f"sha256:{'a' * 64}",
        f"{_CONTAINER}.image",
        f"ddp-controller@sha256:{'a' * 64}",
    ),
    *(
        Row(f"controller.runtimeImage.{name}", value, f"{_RUNTIME}.image", becomes, serves=TRAINER)
        for name, value, becomes in (
            ("repository", "team/r", "team/r:0.1.0"),
            ("tag", "2", "ddp-runtime:2"),
            ("digest", f"sha256:{'a' * 64}", f"ddp-runtime@sha256:{'a' * 64}"),
        )
    ),
    Row("controller.replicas", 1, "Deployment/ddp-controller spec.replicas", 1),
    Row("controller.settleSeconds", 5, f"{_CONTAINER}.args.0", "--settle=5"),
    Row("controller.patienceSeconds", 60, f"{_CONTAINER}.args.1", "--patience=60"),
    Row("controller.cooldownSeconds", 9, f"{_CONTAINER}.args.2", "--cooldown=9"),
    Row("controller.ddpJobs", False, "CustomResourceDefinition/ddpjobs.ddp.dev", ABSENT),
    Row("controller.namespaces", ["vision"], f"{_CONTAINER}.args.4", "--only-namespace=vision"),
    Row("controller.taints", ["example.com/repair"], f"{_CONTAINER}.args.4", "--taint=example.com/repair"),
    Row("controller.resources.cpu", "1", f"{_CONTAINER}.resources.requests.cpu", 1),
    Row("controller.resources.memory", "1Gi", f"{_CONTAINER}.resources.limits.memory", "1Gi"),
    Row("controller.nodeSelector", NODES, f"{_POD}.nodeSelector", NODES),
    *(
        Row(f"controller.tolerations.0.{name}", value, f"{_POD}.tolerations.0.{name}", value)
        for name, value in TOLERATION.items()
    ),
)
