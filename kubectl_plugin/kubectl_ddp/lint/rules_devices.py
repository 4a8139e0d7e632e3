"""Rules about devices: GPUs, RDMA, and the settings that a pod needs to use them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.common.lint.model import Found, Severity
from ddp_trainer.common.lint.values import is_no, is_yes
from kubectl_ddp.fabrics.registry import fabrics
from kubectl_ddp.lint import sources
from kubectl_ddp.lint.container import is_rdma
from kubectl_ddp.lint.model import PodRule, Pods, Workload

EFA: Final = "vpc.amazonaws.com/efa"
_LOCK: Final = "IPC_LOCK"
_MACHINE: Final = "node.kubernetes.io/instance-type"
_HUGE: Final = "hugepages-"
_OF_COREWEAVE: Final = ("gpu.nvidia.com/", "node.coreweave.cloud/", "backend.coreweave.cloud/")
_OF_AZURE: Final = ("kubernetes.azure.com/", "agentpool")
_WHOLE: Final = 8
"""GPUs per machine in most clusters with RDMA."""


def _cannot_lock(pods: Pods, *, efa: bool) -> Iterator[Found]:
    """Yield root containers with RDMA devices but without IPC_LOCK; the capability has no effect for other users."""
    for container in pods.training_containers:
        has = container.is_privileged or _LOCK in container.capabilities
        for resource in container.rdma:
            if pods.may_be_root(container) and not has and (resource == EFA) is efa:
                yield Found(container.name, resource)


def _no_lock(pods: Pods, _: Workload) -> Iterator[Found]:
    yield from _cannot_lock(pods, efa=False)


def _no_lock_for_efa(pods: Pods, _: Workload) -> Iterator[Found]:
    yield from _cannot_lock(pods, efa=True)


def _lock_without_effect(pods: Pods, _: Workload) -> Iterator[Found]:
    for container in pods.training_containers:
        if _LOCK in container.capabilities and not pods.may_be_root(container):
            yield Found(container.name)


def _memlock_depends_on_runtime(pods: Pods, _: Workload) -> Iterator[Found]:
    for container in pods.training_containers:
        is_plain = _LOCK not in container.capabilities and not container.is_privileged
        if container.rdma and is_plain and not pods.may_be_root(container):
            yield Found(container.name, ", ".join(container.rdma))


def _adapter_count_mismatch(pods: Pods, _: Workload) -> Iterator[Found]:
    machine = pods.node_selector.get(_MACHINE, "")
    asked = pods.rdma.get(EFA)
    known = fabrics()["aws-efa"].devices_of_machines.get(machine) if asked is not None else None
    if known is not None and known != f"{EFA}={asked}":
        yield Found(EFA, str(asked), f"{machine} has {known.rpartition('=')[2]}")


def _no_hugepages(pods: Pods, _: Workload) -> Iterator[Found]:
    for container in pods.training_containers:
        if EFA in container.rdma and not any(name.startswith(_HUGE) for name in container.limits):
            yield Found(container.name)


def _request_limit_mismatch(pods: Pods, _: Workload) -> Iterator[Found]:
    for container in pods.containers:
        for name, asked in container.requests.items():
            is_device = is_rdma(name) or name.startswith(_HUGE) or (container.gpus > 0 and "/" in name)
            if is_device and container.limits.get(name) != asked:
                yield Found(container.name, f"{name}: {asked}", container.limits.get(name, "nothing"))


def _boolean_or_count(pods: Pods, _: Workload) -> Iterator[Found]:
    labels = list(pods.node_selector)
    count = pods.rdma.get("rdma/ib")
    if count is not None and count > 1 and any(label.startswith(_OF_COREWEAVE) for label in labels):
        yield Found("rdma/ib", str(count), "on CoreWeave it is 1 for all adapters of the machine")
    if count == 1 and pods.gpus > 1 and any(label.startswith(_OF_AZURE) for label in labels):
        yield Found("rdma/ib", "1", "on Azure it counts adapters, of which a machine has 8")


def _role_mismatch(pods: Pods, workload: Workload) -> Iterator[Found]:
    def devices(of: Pods) -> dict[str, int]:
        found = {f"{EFA if name == EFA else name}": count for name, count in of.rdma.items()}
        return found | {f"GPUs of {_type_of(of)}": of.gpus}

    training = [each for each in workload.pods if each.gpus or each.rdma]
    if pods in training[1:] and devices(pods) != devices(training[0]):
        yield Found(
            pods.role, _format_devices(devices(pods)), f"{training[0].role} has {_format_devices(devices(training[0]))}"
        )


def _type_of(pods: Pods) -> str:
    return pods.node_selector.get("nvidia.com/gpu.product") or pods.node_selector.get(_MACHINE) or "any type"


def _format_devices(devices: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(devices.items())) or "none"


def _part_of_a_machine(pods: Pods, _: Workload) -> Iterator[Found]:
    if pods.rdma and 0 < pods.gpus < _WHOLE and not _claims_channel(pods) and not pods.node_selector.get(_MACHINE):
        yield Found("nvidia.com/gpu", str(pods.gpus))


def _claims_channel(pods: Pods) -> bool:
    """Return True if a pod claims a channel of a ComputeDomain; only its template's name shows it."""
    return any("channel" in str(each).lower() or "domain" in str(each).lower() for each in _claims(pods))


def _claims(pods: Pods) -> list[object]:
    claims = pods.spec.get("resourceClaims")
    return claims if isinstance(claims, list) else []


def _infiniband_disabled(pods: Pods, _: Workload) -> Iterator[Found]:
    for container in pods.training_containers:
        others = [name for name in container.rdma if name != EFA]
        if others and is_yes(container.environment.get("NCCL_IB_DISABLE", "")):
            yield Found("NCCL_IB_DISABLE", container.environment["NCCL_IB_DISABLE"], ", ".join(others))


def _may_fallback_to_tcp(pods: Pods, workload: Workload) -> Iterator[Found]:
    for container in pods.training_containers:
        is_open = "NCCL_NET" not in container.environment and "NCCL_NET" not in container.unresolved_env
        if container.rdma and is_open and workload.count > 1:
            yield Found("NCCL_NET", detail=", ".join(container.rdma))


def _cumem_disabled(pods: Pods, _: Workload) -> Iterator[Found]:
    for container in pods.training_containers:
        if _claims_channel(pods) and is_no(container.environment.get("NCCL_CUMEM_ENABLE", "")):
            yield Found("NCCL_CUMEM_ENABLE", container.environment["NCCL_CUMEM_ENABLE"])


RULES: Final = (
    PodRule(
        id="K04",
        severity=Severity.ERROR,
        looks_for="RDMA devices for root, without the capability `IPC_LOCK`",
        when=_no_lock,
        message="Container {name} requests {value} and may not lock memory: RDMA fails to register its buffers, and "
        "NCCL uses TCP.",
        fix="Add the capability IPC_LOCK, or let the container runtime leave locked memory unlimited.",
        source=sources.TROUBLESHOOTING,
    ),
    PodRule(
        id="K05",
        looks_for="`IPC_LOCK` for a user that is not root",
        when=_lock_without_effect,
        message="Container {name} is not root, so IPC_LOCK has no effect: the limit of locked memory stays.",
        fix="Delete it, and let the container runtime leave locked memory unlimited.",
        source=sources.issue("NVIDIA/nvidia-container-toolkit", 2037),
    ),
    PodRule(
        id="K07",
        looks_for="another number of EFA adapters than the machine has",
        when=_adapter_count_mismatch,
        message="{value} of {name} are requested, and {detail}: with fewer, NCCL detects a wrong topology.",
        fix="Request all of them.",
        source=sources.EFA_TYPES,
    ),
    PodRule(
        id="K08",
        severity=Severity.ERROR,
        looks_for="devices or huge pages whose request is not their limit",
        when=_request_limit_mismatch,
        message="Container {name} requests {value} and is limited to {detail}: the API server refuses the pod.",
        fix="Write the same under limits.",
        source=sources.EXTENDED,
    ),
    PodRule(
        id="K09",
        looks_for="`rdma/ib` counted as another cloud counts it",
        when=_boolean_or_count,
        message="{name}: {value} is requested, and {detail}.",
        fix="Correct the number.",
        source=sources.COREWEAVE,
    ),
    PodRule(
        id="K16",
        severity=Severity.ERROR,
        looks_for="replicas with differing GPUs or RDMA devices",
        when=_role_mismatch,
        message="The pods of {name} have {value}, and {detail}: nodes with differing devices hang in NCCL.",
        fix="Give all replicas the same.",
        source=sources.issue("NVIDIA/nccl", 2428),
    ),
    PodRule(
        id="K17",
        severity=Severity.INFO,
        looks_for="RDMA, and fewer than 8 GPUs",
        when=_part_of_a_machine,
        message="{value} GPUs are requested with RDMA; on a machine with more GPUs the pod may get some that are not "
        "next to its adapters.",
        fix="Request all GPUs of a machine.",
        source=sources.TROUBLESHOOTING,
    ),
    PodRule(
        id="K26",
        looks_for="EFA for root, without the capability `IPC_LOCK`",
        when=_no_lock_for_efa,
        message="Container {name} requests {value} without IPC_LOCK: it works only where the machine's image leaves "
        "locked memory unlimited.",
        fix="Add the capability, or make sure of the machines.",
        source=sources.EKS,
    ),
    PodRule(
        id="K27",
        severity=Severity.INFO,
        looks_for="RDMA for a user that is not root",
        when=_memlock_depends_on_runtime,
        message="Container {name} requests {value} and is not root, so the container runtime must leave locked "
        "memory unlimited.",
        fix="Check it with ddp-launch preflight, and set NCCL_NET to forbid a fallback.",
        source=sources.issue("NVIDIA/nvidia-container-toolkit", 2037),
    ),
    PodRule(
        id="K28",
        looks_for="EFA without huge pages",
        when=_no_hugepages,
        message="Container {name} requests EFA without huge pages, which libfabric needs for its buffers.",
        fix="Request hugepages-2Mi: 5120Mi.",
        source=sources.EKS,
    ),
    PodRule(
        id="K36",
        severity=Severity.ERROR,
        looks_for="RDMA devices, and `NCCL_IB_DISABLE=1`",
        when=_infiniband_disabled,
        message="{name}={value} leaves {detail} idle, and all goes over TCP.",
        source=sources.env("NCCL_IB_DISABLE"),
    ),
    PodRule(
        id="K37",
        severity=Severity.INFO,
        looks_for="RDMA devices, and no `NCCL_NET` that insists on them",
        when=_may_fallback_to_tcp,
        message="{name} is not set, so NCCL falls back to TCP without a warning if {detail} cannot be used.",
        fix="Set NCCL_NET to the network's name, such as IB, and a fallback fails at the start.",
        source=sources.env("NCCL_NET"),
    ),
    PodRule(
        id="K38",
        severity=Severity.ERROR,
        looks_for="a channel of a ComputeDomain, and `NCCL_CUMEM_ENABLE=0`",
        when=_cumem_disabled,
        message="{name}={value} switches off what NVLink between machines needs.",
        source=sources.env("NCCL_CUMEM_ENABLE"),
    ),
)
