"""Signs that a node will go or is broken: cordon, taints of interruption notices, bad conditions. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kubectl_ddp.kube.objects import Object

TAINTS: Final[Mapping[str, str]] = {
    "ToBeDeletedByClusterAutoscaler": "the cluster autoscaler removes it",
    "karpenter.sh/disrupted": "Karpenter removes it",
    "karpenter.sh/disruption": "Karpenter removes it",
    "aws-node-termination-handler/spot-itn": "AWS takes the spot instance back",
    "aws-node-termination-handler/scheduled-maintenance": "AWS scheduled maintenance",
    "aws-node-termination-handler/asg-lifecycle-termination": "its Auto Scaling group ends it",
    "aws-node-termination-handler/rebalance-recommendation": "AWS recommends to leave the spot instance",
    "cloud.google.com/impending-node-termination": "Google Cloud ends the VM",
    "remediator.aks.microsoft.com/unschedulable": "AKS drains it for a scheduled event",
    "node.cloudprovider.kubernetes.io/shutdown": "the cloud has shut it down",
}
"""Key of a taint → what it means. Sources, in this order: kubernetes/autoscaler ``cluster-autoscaler/utils/taints``;
kubernetes-sigs/karpenter ``pkg/apis/v1/taints.go`` and, before v1, ``designs/no-schedule-taint.md``;
aws/aws-node-termination-handler ``pkg/node/node.go`` (with ``taintNode: true``); GoogleCloudPlatform/
k8s-node-termination-handler ``deploy/k8s.yaml``; learn.microsoft.com ``azure/aks/node-auto-repair``; kubernetes.io
``labels-annotations-taints``. NVSentinel cordons by default, and a taint that is configured there can be added by
``--taint``.
"""

CORDONED: Final = "cordoned"
"""Reason of a node that was cordoned, which is how a drain begins."""

CONDITIONS: Final[Mapping[str, str]] = {
    "KernelDeadlock": "its kernel is deadlocked",
    "ReadonlyFilesystem": "a file system is read-only",
    "CorruptDockerOverlay2": "its container storage is corrupt",
    "FrequentKubeletRestart": "its kubelet restarts often",
    "FrequentContainerdRestart": "its containerd restarts often",
    "FrequentUnregisterNetDevice": "its network devices fail",
    "GpuMemWatch": "its GPU memory has failed",
    "GpuPcieWatch": "PCIe of a GPU has failed",
    "GpuNvlinkWatch": "NVLink has failed",
    "GpuInforomWatch": "the InfoROM of a GPU is corrupt",
    "GpuMcuWatch": "the microcontroller of a GPU has failed",
    "GpuSmWatch": "a multiprocessor of a GPU has failed",
    "SysLogsXIDError": "a GPU reported an XID error",
    "SysLogsSXIDError": "an NVSwitch reported an SXID error",
    "SysLogsGPUFallenOff": "a GPU has fallen off the bus",
}
"""Type of a condition that is bad when its status is True → what it means. Sources: kubernetes/node-problem-detector
``config/*.json`` (the first six); NVIDIA/NVSentinel, its GPU and syslog health monitors (the others). ``Ready`` is not
listed: the pods of a node that is lost cannot be moved, and the group continues without them.
"""


def doom_reason(node: Object, more: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return why the pods of a node should move; empty if they can stay.

    Args:
        node: Node.
        more: Further keys of taints or types of conditions, with their meaning.
    """
    spec, status = node.get("spec") or {}, node.get("status") or {}
    for taint in spec.get("taints") or ():
        if why := {**TAINTS, **more}.get(str(taint.get("key"))):
            return f"taint {taint['key']}: {why}"
    for condition in status.get("conditions") or ():
        why = {**CONDITIONS, **more}.get(str(condition.get("type")))
        if why and condition.get("status") == "True":
            return f"condition {condition['type']}: {why}"
    return CORDONED if spec.get("unschedulable") else ""
