"""Rules about the network between pods: service meshes, policies, the host network, and headless Services."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ddp_trainer.common.lint.model import Found, Severity
from kubectl_ddp.lint import sources
from kubectl_ddp.lint.accessors import mapping, string_mapping
from kubectl_ddp.lint.model import PodRule, Pods, Workload
from kubectl_ddp.lint.network_policy import blocking_policies, selects

_INJECT: Final = "sidecar.istio.io/inject"
_OF_PODS: Final = (
    *(_INJECT, "linkerd.io/inject", "k8s.v1.cni.cncf.io/networks"),
    *("networking.gke.io/interfaces", "networking.gke.io/default-interface"),
)
"""Labels and annotations that take effect only on pods."""
_WITH_HOST_NAMES: Final = "ClusterFirstWithHostNet"


def _annotations_and_labels(metadata: Mapping[str, Any]) -> dict[str, str]:
    return string_mapping(metadata.get("annotations")) | string_mapping(metadata.get("labels"))


def _is_out_of_the_mesh(pods: Pods) -> bool:
    return _annotations_and_labels(pods.metadata).get(_INJECT, "").lower() == "false" or pods.is_on_host_network


def _is_injected(workload: Workload) -> bool:
    labels = workload.namespace_labels()
    return labels.get("istio-injection") == "enabled" or "istio.io/rev" in labels


def _in_the_mesh(pods: Pods, workload: Workload) -> Iterator[Found]:
    if workload.count > 1 and _is_injected(workload) and not _is_out_of_the_mesh(pods):
        yield Found(_INJECT)


def _may_be_in_mesh(pods: Pods, workload: Workload) -> Iterator[Found]:
    if workload.count > 1 and not workload.namespace_labels() and not _is_out_of_the_mesh(pods):
        yield Found(_INJECT)


def _missing_from_pods(pods: Pods, workload: Workload) -> Iterator[Found]:
    if workload.kind == "Pod":
        return
    for name, value in _annotations_and_labels(workload.metadata).items():
        if name in _OF_PODS and name not in _annotations_and_labels(pods.metadata):
            yield Found(name, value, workload.kind)


def _without_names(pods: Pods, _: Workload) -> Iterator[Found]:
    if pods.is_on_host_network and pods.spec.get("dnsPolicy") != _WITH_HOST_NAMES:
        yield Found("dnsPolicy", str(pods.spec.get("dnsPolicy", "not set")))


def _shares_ports(pods: Pods, _: Workload) -> Iterator[Found]:
    for container in pods.training_containers if pods.is_on_host_network else ():
        environment = container.environment
        if container.gpus and "NCCL_RAS_ADDR" not in environment and environment.get("NCCL_RAS_ENABLE") != "0":
            yield Found(container.name)


def _blocked_by_policy(pods: Pods, workload: Workload) -> Iterator[Found]:
    if workload.count > 1:
        peers = [workload.labels_of(each) for each in workload.training]
        policies = workload.objects_of_kind("NetworkPolicy")
        for direction, policy in blocking_policies(policies, workload.labels_of(pods), peers):
            yield Found("NetworkPolicy", policy, direction.lower())


def _excludes_not_ready_pods(pods: Pods, workload: Workload) -> Iterator[Found]:
    said = " ".join(word for each in pods.containers for word in (*each.environment.values(), *each.command_line))
    for service in workload.objects_of_kind("Service"):
        name, spec = str(mapping(service.get("metadata")).get("name")), mapping(service.get("spec"))
        selector = string_mapping(spec.get("selector"))
        is_theirs = any(selects({"matchLabels": selector}, workload.labels_of(each)) for each in workload.pods)
        is_used = pods.spec.get("subdomain") == name or name in said
        lacks = [
            *(["clusterIP: None"] if spec.get("clusterIP") != "None" else []),
            *(["publishNotReadyAddresses: true"] if spec.get("publishNotReadyAddresses") is not True else []),
        ]
        if selector and is_theirs and is_used and lacks:
            yield Found(name, detail=" and ".join(lacks))


RULES: Final = (
    PodRule(
        id="K10",
        looks_for="pods that a service mesh's namespace gives a proxy",
        when=_in_the_mesh,
        message="The namespace puts Istio's proxy in front of the pods' ports, which breaks rendezvous and NCCL.",
        fix='Label the pods {name}: "false".',
        source=sources.issue("kubeflow/trainer", 1637),
    ),
    PodRule(
        id="K11",
        severity=Severity.ERROR,
        looks_for="labels and annotations for pods that are set only on the object that creates the pods",
        when=_missing_from_pods,
        message="{name} is set only on the {detail}, and its pods do not get it.",
        fix="Write it into the metadata of the pod template.",
        source=sources.issue("kubeflow/pytorch-operator", 258),
    ),
    PodRule(
        id="K12",
        severity=Severity.ERROR,
        looks_for="`hostNetwork` without `dnsPolicy: ClusterFirstWithHostNet`",
        when=_without_names,
        message="The pods have their machine's network, and with {name} {value} its resolver, which knows no Service.",
        fix="Set dnsPolicy: ClusterFirstWithHostNet.",
        source=sources.POD_DNS,
    ),
    PodRule(
        id="K13",
        looks_for="`hostNetwork` with NCCL's default port",
        when=_shares_ports,
        message="Container {name} shares its machine's ports: the rendezvous and NCCL's RAS (28028) meet those of any "
        "other job there.",
        fix="Do without hostNetwork, or choose MASTER_PORT and NCCL_RAS_ADDR for each job.",
        source="https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/troubleshooting/ras.html",
    ),
    PodRule(
        id="K14",
        severity=Severity.ERROR,
        looks_for="a NetworkPolicy that keeps the pods from each other",
        when=_blocked_by_policy,
        message="The NetworkPolicy {value} allows the pods no {detail} between each other on all ports: the "
        "rendezvous port is not enough, since gloo and NCCL use those that the kernel chooses.",
        fix="Allow the job's pods, by their labels and without ports.",
        source=sources.POLICIES,
    ),
    PodRule(
        id="K29",
        severity=Severity.INFO,
        looks_for="pods that do not say that they want no proxy of a mesh",
        when=_may_be_in_mesh,
        message="Where the namespace has Istio, its proxy in front of the pods' ports breaks rendezvous and NCCL.",
        fix='Label the pods {name}: "false".',
        source=sources.SIDECARS,
    ),
    PodRule(
        id="K30",
        looks_for="a Service for the rendezvous that is not headless, or hides pods that are not ready",
        when=_excludes_not_ready_pods,
        message="The nodes look for one another through the Service {name} before any of them is ready, and it lacks "
        "{detail}.",
        fix="Add it.",
        source=sources.HEADLESS,
    ),
)
