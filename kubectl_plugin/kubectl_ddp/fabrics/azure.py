"""Azure: the InfiniBand of the ND machines."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.fabrics import sources
from kubectl_ddp.fabrics.model import ConflictingVariable, EmitPolicy, Entry, Need, Profile
from kubectl_ddp.fabrics.plain import DISABLED, INTERFACES, LOCKED_MEMORY, VERBS, VERBS_NET

RESOURCE: Final = "rdma/ib"
_TUNING: Final = {
    "NCCL_IB_QPS_PER_CONNECTION": "4",
    "NCCL_IGNORE_CPU_AFFINITY": "1",
    "NCCL_P2P_NET_CHUNKSIZE": "524288",
    "NCCL_PXN_DISABLE": "1",
    "NCCL_MIN_NCHANNELS": "32",
}

IB: Final = Profile(
    name="azure-ib",
    summary="Azure's ND A100 v4, ND H100 v5 and ND H200 v5 machines: InfiniBand.",
    source=sources.AZURE,
    entries=(
        VERBS_NET,
        Entry(
            key="rdma",
            value=f"{RESOURCE}=8",
            reason="all of the machine's devices, by SR-IOV; --rdma rdma/shared_ib where the plugin shares them",
            source=sources.AKS,
            emission=EmitPolicy.VENDOR,
        ),
        Entry(
            key="env.NCCL_IB_HCA",
            value="^=mlx5_8",
            reason="keeps the Ethernet device of the H100 and H200 machines out",
            source=sources.AZURE,
            emission=EmitPolicy.VENDOR,
            machines=("Standard_ND96is*_H[12]00_v5",),
        ),
        Entry(
            key="env.NCCL_TOPO_FILE",
            value="<ndv4-topo.xml or ndv5-topo.xml, mounted>",
            reason="the virtual machine shows a PCI tree that is not the real one",
            source=sources.AZURE,
            emission=EmitPolicy.OFF,
        ),
        Entry(
            key="env.NCCL_IB_PCI_RELAXED_ORDERING",
            value="1",
            reason="2, the default, finds out by itself; 1 fails where it is not to be had",
            source=sources.AZURE,
            emission=EmitPolicy.OFF,
        ),
        *(
            Entry(
                key=f"env.{name}",
                value=value,
                reason="tuning without a published comparison; the same source leaves it out for newer machines",
                source=sources.AZURE,
                emission=EmitPolicy.OFF,
            )
            for name, value in _TUNING.items()
        ),
        *INTERFACES,
    ),
    needs=(
        Need(
            message="Without the machine's topology file NCCL plans for a PCI tree that is not there: mount it, as in "
            "--mount configmap=nccl-topo:/topo, and say --env NCCL_TOPO_FILE=/topo/ndv5-topo.xml.",
            source=sources.AZURE,
            is_grave=True,
            unless="NCCL_TOPO_FILE",
        ),
        Need(
            message="All nodes must be of one agent pool or scale set: InfiniBand ends there (--topology "
            "pack=kubernetes.azure.com/agentpool:required).",
            source=sources.AKS,
        ),
        LOCKED_MEMORY,
        VERBS,
    ),
    refusals=(
        DISABLED,
        ConflictingVariable(
            name="NCCL_COLLNET_ENABLE",
            value="1",
            reason="it needs SHARP, which few subscriptions have",
            source=sources.AZURE,
        ),
    ),
    devices=("rdma/",),
)

PROFILES: Final = (IB,)
