"""Oracle Cloud: RoCE, by virtual functions."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.fabrics import sources
from kubectl_ddp.fabrics.model import ConflictingVariable, EmitPolicy, Entry, Need, Profile
from kubectl_ddp.fabrics.plain import DISABLED, INTERFACES, LOCKED_MEMORY, VERBS, VERBS_NET

RESOURCE: Final = "nvidia.com/rdma-vf"
A100: Final = ("BM.GPU4.8", "BM.GPU.B4.8", "BM.GPU.A100-v2.8")
HOPPER_AND_LATER: Final = ("BM.GPU.H100.8", "BM.GPU.H200.8", "BM.GPU.B200.8", "BM.GPU.B300.8")
FUNCTIONS: Final = {
    "BM.GPU4.8": 16,
    "BM.GPU.B4.8": 16,
    "BM.GPU.A100-v2.8": 16,
    "BM.GPU.H100.8": 16,
    "BM.GPU.H200.8": 8,
    "BM.GPU.B200.8": 8,
    "BM.GPU.B300.8": 16,
}
"""Number of virtual functions by shape; equals the length of its device list."""

_DEVICES: Final = {
    "BM.GPU4.8": "0,2,6,8,10,12,14,16,1,3,7,9,11,13,15,17",
    "BM.GPU.B4.8": "1,2,3,4,5,6,7,8,14,15,16,17,9,10,11,12",
    "BM.GPU.A100-v2.8": "1,2,3,4,5,6,7,8,14,15,16,17,9,10,11,12",
    "BM.GPU.H100.8": "0,1,3,4,5,6,7,8,9,10,12,13,14,15,16,17",
    "BM.GPU.H200.8": "0,3,4,5,6,9,10,11",
    "BM.GPU.B200.8": "0,3,4,5,6,9,10,11",
    "BM.GPU.B300.8": "0,1,7,8,9,10,11,12,13,14,16,17,18,19,20,21",
}
"""RDMA device numbers by shape, for pods on the host network."""


def _vendor_entry(name: str, value: str, reason: str, machines: tuple[str, ...] = ()) -> Entry:
    return Entry(
        key=f"env.{name}",
        value=value,
        reason=reason,
        source=sources.OCI,
        emission=EmitPolicy.VENDOR,
        machines=machines,
    )


_SAME_EVERYWHERE: Final = "Oracle's recipe for this fabric, the same on all its shapes"

ROCE: Final = Profile(
    name="oci-roce",
    summary="Oracle's BM.GPU shapes from A100 to B300: RoCE by virtual functions.",
    source=sources.OCI,
    entries=(
        VERBS_NET,
        _vendor_entry("NCCL_IB_HCA", "mlx5", "virtual functions have other numbers than the devices of the machine"),
        *(
            Entry(
                key="env.NCCL_IB_HCA",
                value="=" + ",".join(f"mlx5_{number}" for number in numbers.split(",")),
                reason="for pods in the network of their machine, which this program makes none of",
                source=sources.OCI,
                emission=EmitPolicy.OFF,
                machines=(shape,),
            )
            for shape, numbers in _DEVICES.items()
        ),
        _vendor_entry("NCCL_IB_GID_INDEX", "3", f"{_SAME_EVERYWHERE}; NCCL's guide advises against it since 2.21"),
        _vendor_entry("NCCL_IB_TC", "41", "the traffic class of Oracle's switches; no other site's"),
        _vendor_entry("NCCL_IB_SL", "0", _SAME_EVERYWHERE),
        _vendor_entry("NCCL_IB_TIMEOUT", "22", _SAME_EVERYWHERE),
        _vendor_entry("NCCL_IB_SPLIT_DATA_ON_QPS", "0", _SAME_EVERYWHERE),
        _vendor_entry("NCCL_IB_QPS_PER_CONNECTION", "4", "Oracle's recipe for A100", A100),
        _vendor_entry("NCCL_CUMEM_ENABLE", "0", "Oracle's recipe for H100 and later", HOPPER_AND_LATER),
        _vendor_entry("NCCL_IGNORE_CPU_AFFINITY", "1", "Oracle's recipe for H100 and later", HOPPER_AND_LATER),
        _vendor_entry("NCCL_SOCKET_IFNAME", "eth0", "the network of the pods; virtual functions are named otherwise"),
        Entry(
            key="env.DDP_LINT_IGNORE",
            value="N03,N10,N11,N36",
            reason="the recipe has variables that NCCL documents as debugging, a GID index, and defaults",
            source=sources.OCI,
            emission=EmitPolicy.VENDOR,
        ),
        *(
            entry
            for shape, count in FUNCTIONS.items()
            for entry in (
                Entry(
                    key="rdma",
                    value=f"{RESOURCE}={count}",
                    reason="one virtual function for each device of the machine",
                    source=sources.OCI_VF,
                    emission=EmitPolicy.VENDOR,
                    machines=(shape,),
                ),
                Entry(
                    key="networks",
                    value=",".join(["rdma-vf"] * count),
                    reason="attaches each virtual function to the pod's network",
                    source=sources.OCI_VF,
                    emission=EmitPolicy.VENDOR,
                    machines=(shape,),
                ),
            )
        ),
        *INTERFACES[1:],
    ),
    needs=(
        Need(
            message="Oracle's own recipe runs privileged; this program's pods do not, so the cluster must hand out "
            "the virtual functions with their RDMA devices (isRdma in the SR-IOV device plugin), with a "
            "NetworkAttachmentDefinition 'rdma-vf' in the job's namespace.",
            source=sources.OCI_VF,
            is_grave=True,
        ),
        LOCKED_MEMORY,
        VERBS,
    ),
    refusals=(
        DISABLED,
        ConflictingVariable(
            name="NCCL_IB_HCA",
            value="=*",
            reason="such a list is right on one shape alone, and not for virtual functions",
            source=sources.OCI,
        ),
    ),
    devices=(RESOURCE, "nvidia.com/", "rdma/"),
    hints={shape: f"{RESOURCE}={count}" for shape, count in FUNCTIONS.items()},
)

PROFILES: Final = (ROCE,)
