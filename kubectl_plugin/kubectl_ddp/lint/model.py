"""Data model of the lint: pods, workloads and rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ddp_trainer.common.lint.model import Found, RuleMetadata
from kubectl_ddp.engines.registry import ENGINES
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.lint.accessors import mapping, mappings, string_mapping
from kubectl_ddp.lint.container import Container


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """A pod template and the number of its pods. A field that is missing or of the wrong type counts as unset."""

    role: str
    """Name of the role in the object, such as Worker; empty if there is only one kind of pods."""
    count: int
    """Number of pods; the maximum for an elastic job."""
    metadata: Mapping[str, object]
    spec: Mapping[str, object]

    @property
    def labels(self) -> dict[str, str]:
        """Labels of each pod."""
        return string_mapping(self.metadata.get("labels"))

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations of each pod."""
        return string_mapping(self.metadata.get("annotations"))

    @property
    def containers(self) -> list[Container]:
        """Containers that run at the same time, including sidecars."""
        sidecars = [each for each in mappings(self.spec.get("initContainers")) if each.get("restartPolicy") == "Always"]
        return [Container(each) for each in (*mappings(self.spec.get("containers")), *sidecars)]

    @property
    def training_containers(self) -> list[Container]:
        """Containers with GPUs or RDMA devices; the first container if there are none."""
        return [each for each in self.containers if each.gpus or each.rdma] or self.containers[:1]

    @property
    def gpus(self) -> int:
        """GPUs per pod."""
        return sum(each.gpus for each in self.containers)

    @property
    def rdma(self) -> dict[str, int]:
        """RDMA devices per pod, by resource name."""
        return {name: count for each in self.containers for name, count in each.rdma.items()}

    @property
    def node_selector(self) -> dict[str, str]:
        """Node selector: required labels of the node."""
        return string_mapping(self.spec.get("nodeSelector"))

    @property
    def is_on_host_network(self) -> bool:
        """True if the pods use the host network."""
        return self.spec.get("hostNetwork") is True

    @property
    def security(self) -> Mapping[str, object]:
        """Security context of the pod, the default for its containers."""
        return mapping(self.spec.get("securityContext"))

    def volume(self, name: object) -> Mapping[str, object]:
        """Return the volume with a name, or an empty mapping."""
        return next((each for each in mappings(self.spec.get("volumes")) if each.get("name") == name), {})

    def may_be_root(self, container: Container) -> bool:
        """Return True if a container runs as root unless its image sets another user."""
        security = {**self.security, **container.security}
        return security.get("runAsUser") in {None, 0} and security.get("runAsNonRoot") is not True


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An object that creates pods, and the other objects of its file."""

    document: Object
    pods: tuple[Pods, ...]
    beside: tuple[Object, ...] = ()

    @property
    def kind(self) -> str:
        """Kind of the object, such as ``PyTorchJob``."""
        return str(self.document.get("kind", ""))

    @property
    def metadata(self) -> Mapping[str, object]:
        """Metadata of the object itself."""
        return mapping(self.document.get("metadata"))

    @property
    def namespace(self) -> str:
        """Namespace; empty if the command line sets it."""
        return str(self.metadata.get("namespace") or "")

    @property
    def where(self) -> str:
        """Kind and name, such as ``PyTorchJob/train``."""
        return f"{self.kind}/{self.metadata.get('name') or self.metadata.get('generateName') or '?'}"

    @property
    def count(self) -> int:
        """Total number of pods."""
        return sum(each.count for each in self.pods)

    @property
    def training(self) -> tuple[Pods, ...]:
        """Pods that run ranks: pods with devices; if there are none, all pods."""
        return tuple(each for each in self.pods if each.gpus or each.rdma) or self.pods

    def labels_of(self, pods: Pods) -> dict[str, str]:
        """Return the labels of each pod, including labels that controllers add."""
        name, role = str(self.metadata.get("name", "")), pods.role.lower()
        added = next((engine.pod_labels for engine in ENGINES.values() if engine.kind == self.kind), {})
        return {label: value.format(name=name, role=role) for label, value in added.items()} | pods.labels

    def objects_of_kind(self, kind: str) -> list[Object]:
        """Return the other objects of one kind; objects with a different namespace are left out."""
        return [
            each
            for each in self.beside
            if each.get("kind") == kind
            and mapping(each.get("metadata")).get("namespace", self.namespace) == self.namespace
        ]

    def namespace_labels(self) -> dict[str, str]:
        """Return the labels of the job's namespace if the file contains it, else an empty mapping."""
        for each in self.beside:
            metadata = mapping(each.get("metadata"))
            if each.get("kind") == "Namespace" and self.namespace in {"", metadata.get("name")}:
                return string_mapping(metadata.get("labels"))
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRule(RuleMetadata):
    """A rule that checks pods."""

    when: Callable[[Pods, Workload], Iterable[Found]]
