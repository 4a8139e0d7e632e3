"""Effect of each value of the controller, a row per key."""

from __future__ import annotations

from typing import Final

from tests.render.platform_values import DIGEST, NODES, TOLERATIONS
from tests.support.chart_values import ABSENT, Row, rows_of

_POD: Final = "Deployment/ddp-controller spec.template.spec"
TRAINER: Final = ("trainer.kubeflow.org/v1alpha1/ClusterTrainingRuntime",)
_NODE: Final = "spec.template.spec.replicatedJobs.0.template.spec.template.spec"
ROWS: Final = (
    Row("controller.enabled", False, "Deployment/ddp-controller", ABSENT),
    Row("controller.ddpJobs", False, "CustomResourceDefinition/ddpjobs.ddp.dev", ABSENT),
    Row("controller.replicas", 1, "Deployment/ddp-controller spec.replicas", 1),
    *rows_of(
        "controller.",
        f"{_POD}.containers.0.",
        ("image.repository", "team/c", "image", "team/c:0.1.0"),
        ("image.tag", "2", "image", "ddp-controller:2"),
        ("image.digest", DIGEST, "image", f"ddp-controller@{DIGEST}"),
        ("settleSeconds", 5, "args.0", "--settle=5"),
        ("patienceSeconds", 60, "args.1", "--patience=60"),
        ("cooldownSeconds", 9, "args.2", "--cooldown=9"),
        ("namespaces", ["vision"], "args.4", "--only-namespace=vision"),
        ("taints", ["example.com/repair"], "args.4", "--taint=example.com/repair"),
        ("resources.cpu", "1", "resources.requests.cpu", 1),
        ("resources.memory", "1Gi", "resources.limits.memory"),
    ),
    *rows_of(
        "controller.runtimeImage.",
        f"ClusterTrainingRuntime/ddp-torch {_NODE}.initContainers.0.image",
        ("repository", "team/r", "", "team/r:0.1.0"),
        ("tag", "2", "", "ddp-runtime:2"),
        ("digest", DIGEST, "", f"ddp-runtime@{DIGEST}"),
        serves=TRAINER,
    ),
    *rows_of("controller.", _POD, ("nodeSelector", NODES, ".nodeSelector"), *TOLERATIONS),
)
