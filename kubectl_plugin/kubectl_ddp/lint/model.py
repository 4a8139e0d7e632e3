"""Pods as the rules see them, and the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ddp_trainer.common.lint.model import Finding, Found, RuleMetadata
from kubectl_ddp.backend import Object
from kubectl_ddp.lint.accessors import mapping, mappings, string_mapping
from kubectl_ddp.lint.container import Container


@dataclass(frozen=True, slots=True, kw_only=True)
class Pods:
    """A pod template, and how many pods are made of it. Whatever is missing or of another type counts as not said."""

    role: str
    """What the object calls them, such as Worker; empty where it has one kind of pods."""
    count: int
    """How many; of an elastic job the most."""
    metadata: Mapping[str, object]
    spec: Mapping[str, object]

    @property
    def labels(self) -> dict[str, str]:
        """Of each pod."""
        return string_mapping(self.metadata.get("labels"))

    @property
    def annotations(self) -> dict[str, str]:
        """Of each pod."""
        return string_mapping(self.metadata.get("annotations"))

    @property
    def containers(self) -> list[Container]:
        """All that run beside one another: sidecars, too."""
        sidecars = [each for each in mappings(self.spec.get("initContainers")) if each.get("restartPolicy") == "Always"]
        return [Container(each) for each in (*mappings(self.spec.get("containers")), *sidecars)]

    @property
    def training_containers(self) -> list[Container]:
        """Those that train: the ones with devices, or else the first."""
        return [each for each in self.containers if each.gpus or each.rdma] or self.containers[:1]

    @property
    def gpus(self) -> int:
        """Of each pod."""
        return sum(each.gpus for each in self.containers)

    @property
    def rdma(self) -> dict[str, int]:
        """RDMA devices of each pod, by the name of the resource."""
        return {name: count for each in self.containers for name, count in each.rdma.items()}

    @property
    def node_selector(self) -> dict[str, str]:
        """Labels of the machines."""
        return string_mapping(self.spec.get("nodeSelector"))

    @property
    def is_on_host_network(self) -> bool:
        """Whether a pod has its machine's addresses."""
        return self.spec.get("hostNetwork") is True

    @property
    def security(self) -> Mapping[str, object]:
        """What holds for all containers that say nothing else."""
        return mapping(self.spec.get("securityContext"))

    def volume(self, name: object) -> Mapping[str, object]:
        """One of its volumes; empty where there is none."""
        return next((each for each in mappings(self.spec.get("volumes")) if each.get("name") == name), {})

    def may_be_root(self, container: Container) -> bool:
        """Whether a container runs as root unless its image says otherwise."""
        security = {**self.security, **container.security}
        return security.get("runAsUser") in {None, 0} and security.get("runAsNonRoot") is not True


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """An object that makes pods, and the objects that stand beside it in the file."""

    document: Object
    pods: tuple[Pods, ...]
    beside: tuple[Object, ...] = ()

    @property
    def kind(self) -> str:
        """As in ``PyTorchJob``."""
        return str(self.document.get("kind", ""))

    @property
    def metadata(self) -> Mapping[str, object]:
        """Of the object itself."""
        return mapping(self.document.get("metadata"))

    @property
    def namespace(self) -> str:
        """Empty where the command line says it."""
        return str(self.metadata.get("namespace") or "")

    @property
    def where(self) -> str:
        """As in ``PyTorchJob/train``."""
        return f"{self.kind}/{self.metadata.get('name') or self.metadata.get('generateName') or '?'}"

    @property
    def count(self) -> int:
        """All its pods."""
        return sum(each.count for each in self.pods)

    @property
    def training(self) -> tuple[Pods, ...]:
        """The pods that ranks run in: those with devices; where none has, all that an operator makes by roles."""
        return tuple(each for each in self.pods if each.gpus or each.rdma) or self.pods

    def labels_of(self, pods: Pods) -> dict[str, str]:
        """Labels of each pod, those that controllers add included."""
        name, role = str(self.metadata.get("name", "")), pods.role
        added = {
            "PyTorchJob": {"training.kubeflow.org/job-name": name, "training.kubeflow.org/replica-type": role.lower()},
            "JobSet": {"jobset.sigs.k8s.io/jobset-name": name, "jobset.sigs.k8s.io/replicatedjob-name": role},
            "Job": {"batch.kubernetes.io/job-name": name, "job-name": name},
        }
        return added.get(self.kind, {}) | pods.labels

    def objects_of_kind(self, kind: str) -> list[Object]:
        """Objects beside it of one kind, in its namespace as far as that is said."""
        return [
            each
            for each in self.beside
            if each.get("kind") == kind
            and mapping(each.get("metadata")).get("namespace", self.namespace) == self.namespace
        ]

    def namespace_labels(self) -> dict[str, str]:
        """Labels of its namespace, where the file has that too."""
        for each in self.beside:
            metadata = mapping(each.get("metadata"))
            if each.get("kind") == "Namespace" and self.namespace in {"", metadata.get("name")}:
                return string_mapping(metadata.get("labels"))
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRule(RuleMetadata):
    """One thing to look for in pods."""

    when: Callable[[Pods, Workload], Iterable[Found]]


@dataclass(frozen=True, slots=True)
class PodFinding:
    """A finding, and the pods that it is about."""

    where: str
    """As in ``PyTorchJob/train Worker``; empty for a variable of a job that is no object yet."""
    finding: Finding

    def __str__(self) -> str:
        return f"{self.where}: {self.finding}" if self.where else str(self.finding)
