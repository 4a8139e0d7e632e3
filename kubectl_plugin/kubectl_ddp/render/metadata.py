"""Labels and annotations of the root object and of the pods: the job's own, and those that the user chose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ddp_trainer.common.constants import Role
from kubectl_ddp.errors import UsageError
from kubectl_ddp.render.gang_scheduling import GangMetadata
from kubectl_ddp.spec.model import JobSpec

Texts = Mapping[str, str]

# A proxy in front of the ports of the collectives breaks them.
NO_PROXY: Final = {"sidecar.istio.io/inject": "false"}
STAYS: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "false", "karpenter.sh/do-not-disrupt": "true"}
MOVES: Final = {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}


def view(
    spec: JobSpec, labels: Callable[..., dict[str, str]], gang: GangMetadata, fabric_annotations: Texts
) -> dict[str, Any]:
    """Return the metadata of the pods for the templates."""
    return {
        "worker_metadata": {
            "labels": chosen("labels", spec.labels, {**labels(Role.WORKER), **gang.pod_labels}, NO_PROXY),
            "annotations": chosen(
                "annotations", spec.annotations, {**gang.pod_annotations, **fabric_annotations}, STAYS
            ),
        },
        "store_metadata": {
            "labels": chosen("labels", spec.labels, labels(Role.STORE), NO_PROXY),
            "annotations": chosen("annotations", spec.annotations, {}, MOVES),
        },
    }


def chosen(key: str, wanted: Texts, own: Texts, defaults: Texts | None = None) -> dict[str, str]:
    """Return the labels or annotations of an object.

    Args:
        key: Key of the job file that has the user's.
        wanted: The user's, which override ``defaults``.
        own: The job's own, which cannot be overridden.
        defaults: Defaults.

    Raises:
        UsageError: If the user's contradict the job's own.
    """
    for name, value in wanted.items():
        if own.get(name, value) != value:
            raise UsageError(
                f"{key}: '{name}' is '{value}', and the job itself sets it to '{own[name]}'.", hint="Leave it out."
            )
    return {**own, **(defaults or {}), **wanted}
