"""Where objects live: apiVersion and kind → URL path, as the API server itself lists them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from kubectl_ddp.backend import Object
from kubectl_ddp.cluster.api import Api
from kubectl_ddp.cluster.refusals import NotServed

PROVIDERS: Final[Mapping[str, str]] = {
    "PyTorchJob": "Install Kubeflow's training operator (v1.9), or choose another --engine; job needs no operator.",
    "TrainJob": "Install Kubeflow Trainer (v2), or choose another --engine.",
    "TrainingRuntime": "Install Kubeflow Trainer (v2), or choose another --engine.",
    "JobSet": "Install JobSet, or choose another --engine.",
    "PodGroup": "Install the scheduler that --gang names, or leave --gang out.",
    "ComputeDomain": "Install NVIDIA's DRA driver for GPUs, 25.8 or newer, or name another --fabric.",
    "ResourceClaimTemplate": "Kubernetes 1.34 or newer serves it; or name another --fabric.",
    "PodMonitor": "Install the Prometheus operator.",
}
"""Who serves a kind that is not Kubernetes' own."""


def collection(api_version: str, plural: str, namespace: str | None) -> str:
    """Path of all objects of a kind in one namespace, or in all of them.

    >>> collection("v1", "pods", "a")
    '/api/v1/namespaces/a/pods'
    >>> collection("kubeflow.org/v1", "pytorchjobs", None)
    '/apis/kubeflow.org/v1/pytorchjobs'
    """
    root = f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"
    return f"{root}/namespaces/{namespace}/{plural}" if namespace else f"{root}/{plural}"


class Discovery:
    """Which kinds the API server serves, and under which plural; each group is asked for once."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._groups: dict[str, dict[str, str]] = {}

    def plural(self, item: Object) -> str | None:
        """The plural of an object's kind; ``None`` when the cluster does not serve it."""
        return self.plural_of(str(item["apiVersion"]), str(item["kind"]))

    def plural_of(self, group: str, kind: str) -> str | None:
        """The plural of a kind of a group and version; ``None`` when the cluster does not serve it."""
        if group not in self._groups:
            self._groups[group] = self._ask(group)
        return self._groups[group].get(kind)

    def _ask(self, group: str) -> dict[str, str]:
        try:
            listed = self._api.get(f"/apis/{group}" if "/" in group else f"/api/{group}")
        except NotServed:
            return {}
        return {each["kind"]: each["name"] for each in listed.get("resources", ()) if "/" not in each["name"]}


def not_served(api_version: str, kind: str, context: str) -> NotServed:
    """The error for a kind that the job needs and the cluster lacks."""
    return NotServed(
        f"The cluster of context '{context}' does not know {kind} ({api_version}).", hint=PROVIDERS.get(kind, "")
    )
