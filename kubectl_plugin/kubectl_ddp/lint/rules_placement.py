"""Rules about the placement and start of a job's pods: gang scheduling, topology, order of daemons."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from ddp_trainer.common.lint.model import Found, Severity
from kubectl_ddp.lint import sources
from kubectl_ddp.lint.accessors import mapping, mappings, number, string_mapping
from kubectl_ddp.lint.model import PodRule, Pods, Workload

CLIQUE: Final = "nvidia.com/gpu.clique"
"""Label that GPU Feature Discovery sets on machines of one NVLink partition."""
_DAEMONS: Final = ("tcpgpudmarxd", "tcpxo", "fastrak")
_GANG_LABELS: Final = (
    *("kueue.x-k8s.io/queue-name", "kueue.x-k8s.io/pod-group-name", "scheduling.k8s.io/group-name"),
    *("scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io", "scheduling.x-k8s.io/pod-group-name"),
    *("volcano.sh/queue-name", "runai/queue", "yunikorn.apache.org/task-group-name"),
)
_TOPOLOGY: Final = ("kueue.x-k8s.io/podset-", "alpha.jobset.sigs.k8s.io/exclusive-topology")


def _missing_affinity(pods: Pods, workload: Workload) -> Iterator[Found]:
    is_placed = (
        "affinity" in pods.spec
        or "topologySpreadConstraints" in pods.spec
        or any(
            key.startswith(_TOPOLOGY)
            for key in (*pods.annotations, *string_mapping(workload.metadata.get("annotations")))
        )
        or any("topology" in key or "block" in key or key == CLIQUE for key in pods.node_selector)
    )
    if pods.rdma and workload.count > 1 and not is_placed:
        yield Found("affinity", str(workload.count))


def _one_by_one(pods: Pods, workload: Workload) -> Iterator[Found]:
    said = (*pods.labels, *pods.annotations, *string_mapping(workload.metadata.get("labels")))
    spec = mapping(workload.document.get("spec"))
    policy = mapping(mapping(spec.get("runPolicy")).get("schedulingPolicy"))
    is_gang = (
        bool(policy)
        or pods.spec.get("schedulerName") not in {None, "default-scheduler"}
        or any(name in said for name in _GANG_LABELS)
        or "schedulingGates" in pods.spec
        or _is_elastic(spec)
    )
    if pods.gpus and workload.count > 1 and not is_gang:
        yield Found("schedulerName", str(workload.count))


def _is_elastic(spec: Mapping[str, Any]) -> bool:
    elastic = mapping(spec.get("elasticPolicy"))
    least, most = number(elastic.get("minReplicas")), number(elastic.get("maxReplicas"))
    return 0 < least < most


def _may_span_cliques(pods: Pods, workload: Workload) -> Iterator[Found]:
    domains = {
        mapping(mapping(mapping(each.get("spec")).get("channel")).get("resourceClaimTemplate")).get("name")
        for each in workload.objects_of_kind("ComputeDomain")
    }
    claimed = [each.get("resourceClaimTemplateName") for each in mappings(pods.spec.get("resourceClaims"))]
    if domains & set(claimed) and CLIQUE not in str(pods.spec.get("affinity")) and CLIQUE not in pods.node_selector:
        yield Found(CLIQUE)


def _before_the_daemon(pods: Pods, _: Workload) -> Iterator[Found]:
    for container in pods.containers:
        image = str(container.document.get("image", ""))
        if any(word in f"{container.name} {image}" for word in _DAEMONS) and not container.gpus:
            is_sidecar = container.document.get("restartPolicy") == "Always"
            if is_sidecar and "startupProbe" not in container.document:
                yield Found(container.name)


RULES: Final = (
    PodRule(
        id="K18",
        severity=Severity.INFO,
        looks_for="several nodes with RDMA, and no word on how they should lie to each other",
        when=_missing_affinity,
        message="The {value} pods have no placement constraint, so they may be spread over the slowest links.",
        fix="Set an affinity for the fabric's topology label, such as that of a block, a clique or a placement group.",
        source=sources.TOPOLOGY,
    ),
    PodRule(
        id="K19",
        severity=Severity.INFO,
        looks_for="several nodes with GPUs, without a gang scheduler",
        when=_one_by_one,
        message="The {value} pods are scheduled one by one: two jobs that each get a part wait for each other, with "
        "their GPUs idle.",
        fix="Use a queue or a gang scheduler (Kueue, Volcano, coscheduling), or let the job start with fewer nodes.",
        source=sources.GANGS,
    ),
    PodRule(
        id="K21",
        looks_for="a ComputeDomain's channel without affinity for `nvidia.com/gpu.clique`",
        when=_may_span_cliques,
        message="Nothing keeps the pods within one {name}, over which NVLink ends.",
        fix="Add a pod affinity with that topologyKey.",
        source=sources.issue("NVIDIA/k8s-dra-driver-gpu", 957),
    ),
    PodRule(
        id="K31",
        looks_for="the daemon of a network as a sidecar without `startupProbe`",
        when=_before_the_daemon,
        message="NCCL may start before {name} is ready, and fails then.",
        fix="Give it a startupProbe on its health check.",
        source=sources.issue("NVIDIA/aicr", 1631),
    ),
)
