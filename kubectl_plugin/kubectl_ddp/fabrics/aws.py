"""AWS: Elastic Fabric Adapter, through Amazon's plugin for NCCL."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.fabrics import sources
from kubectl_ddp.fabrics.model import ConflictingVariable, Entry, Need, Profile
from kubectl_ddp.fabrics.plain import INTERFACES, LOCKED_MEMORY

RESOURCE: Final = "vpc.amazonaws.com/efa"
ADAPTERS: Final = {
    "p4d.24xlarge": 4,
    "p4de.24xlarge": 4,
    "p5.48xlarge": 32,
    "p5e.48xlarge": 32,
    "p5en.48xlarge": 16,
    "p5.4xlarge": 1,
    "p6-b200.48xlarge": 8,
    "p6-b300.48xlarge": 16,
    "p6e-gb200.36xlarge": 4,
    "g6.48xlarge": 1,
}
"""Number of adapters by machine type; a job requests all of them."""

_OBSOLETE: Final = "the plugin and libfabric do it themselves, and it is harmful or without effect since"
_ITS_OWN: Final = "the plugin sets what suits the machine, and only where nothing is set"
_OBSOLETES: Final = ("FI_EFA_FORK_SAFE", "RDMAV_*", "FI_EFA_USE_DEVICE_RDMA", "FI_PROVIDER")
_ITS_OWNS: Final = ("NCCL_PROTO", "NCCL_BUFFSIZE", "NCCL_MIN_CHANNELS", "NCCL_MIN_NCHANNELS", "NCCL_NET_GDR_LEVEL")

_NETWORK: Final = Entry(
    key="env.NCCL_NET",
    value="AWS Libfabric",
    reason="the name that every version of the plugin accepts; without the plugin NCCL fails at the start instead of "
    "falling back to TCP",
    source=sources.EFA_PLUGIN,
)
_HUGE_PAGES: Final = Entry(
    key="resource.hugepages-2Mi",
    value="5120Mi",
    reason="libfabric keeps its buffers in huge pages, which Amazon's machine images reserve",
    source=sources.EKS,
)
_NEEDS: Final = (
    Need(
        message="The image must hold Amazon's EFA installer (libfabric, aws-ofi-nccl). Ours does not: build FROM it.",
        source=sources.EFA_PLUGIN,
        is_vendors=True,
    ),
    Need(
        message="The installer must be one whose aws-ofi-nccl lists the NCCL of the image: older ones deadlocked with "
        "NCCL 2.28.9.",
        source=sources.issue("aws/aws-ofi-nccl", 1055),
    ),
    Need(
        message="The security group of the machines must allow all traffic to and from itself, and one cluster "
        "placement group should hold them.",
        source=sources.EKS,
    ),
    LOCKED_MEMORY,
)
_REFUSALS: Final = (
    *(ConflictingVariable(name=name, reason=_OBSOLETE, source=sources.EFA) for name in _OBSOLETES),
    *(ConflictingVariable(name=name, reason=_ITS_OWN, source=sources.EFA) for name in _ITS_OWNS),
    ConflictingVariable(name="NCCL_IB_*", reason="EFA is not an InfiniBand device to NCCL", source=sources.EFA),
)

EFA: Final = Profile(
    name="aws-efa",
    summary="AWS machines with Elastic Fabric Adapters (p4d, p5, p5e, p5en, p6, g6), from EKS's device plugin.",
    source=sources.EFA_PLUGIN,
    entries=(
        _NETWORK,
        *(
            Entry(
                key="rdma",
                value=f"{RESOURCE}={count}",
                reason="all adapters of the machine: with fewer, NCCL's picture of it is wrong",
                source=sources.EFA_TYPES,
                machines=(machine,),
            )
            for machine, count in ADAPTERS.items()
        ),
        _HUGE_PAGES,
        *INTERFACES,
    ),
    needs=_NEEDS,
    refusals=_REFUSALS,
    devices=(RESOURCE,),
    hints={machine: f"{RESOURCE}={count}" for machine, count in ADAPTERS.items()},
)
EFA_DRA: Final = Profile(
    name="aws-efa-dra",
    summary="The same machines, adapters claimed from EKS's DRA driver.",
    source=sources.EKS_DEVICES,
    entries=(
        _NETWORK,
        Entry(
            key="claim.rdma",
            value="efa.networking.k8s.aws=all",
            reason="all adapters of the machine, from the driver that EKS recommends for new clusters",
            source=sources.EKS_DEVICES,
        ),
        _HUGE_PAGES,
        *INTERFACES,
    ),
    needs=(
        *_NEEDS,
        Need(
            message="The cluster must have EKS's EFA DRA driver and Kubernetes 1.34 or newer; EKS Auto Mode has the "
            "device plugin instead.",
            source=sources.EKS_DEVICES,
        ),
    ),
    refusals=_REFUSALS,
)

PROFILES: Final = (EFA, EFA_DRA)
