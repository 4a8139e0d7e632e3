"""CoreWeave, and clouds whose InfiniBand needs one value."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.fabrics import sources
from kubectl_ddp.fabrics.model import ConflictingVariable, EmitPolicy, Entry, Profile
from kubectl_ddp.fabrics.plain import DISABLED, INTERFACES, LOCKED_MEMORY, VERBS, VERBS_NET

_NO_PLUGIN: Final = Entry(
    key="env.NCCL_NET_PLUGIN",
    value="none",
    reason="keeps a plugin that lies in the image, of HPC-X or OFI, from taking the network's place",
    source=sources.COREWEAVE,
)
_FRONT: Final = Entry(
    key="env.NCCL_SOCKET_IFNAME",
    value="eth0",
    reason="the network of the pods; the others carry RDMA",
    source=sources.COREWEAVE,
)
_FOR_MPI: Final = tuple(
    Entry(
        key=f"env.{name}",
        value=value,
        reason="only MPI reads it, and a torch job has none",
        source=sources.COREWEAVE,
        emission=EmitPolicy.OFF,
    )
    for name, value in {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "eth0"}.items()
)
_REFUSALS: Final = (
    DISABLED,
    ConflictingVariable(
        name="NCCL_COLLNET_ENABLE",
        value="1",
        reason="it needs SHARP, which is granted separately",
        source=sources.COREWEAVE,
    ),
    ConflictingVariable(
        name="NCCL_GDRCOPY_*",
        reason="do not set it unless your own measurement shows a benefit",
        source=sources.COREWEAVE,
    ),
)

COREWEAVE_IB: Final = Profile(
    name="coreweave-ib",
    summary="CoreWeave's machines with InfiniBand.",
    source=sources.COREWEAVE,
    entries=(
        VERBS_NET,
        _NO_PLUGIN,
        Entry(
            key="env.NCCL_IB_HCA",
            value="ibp",
            reason="the names of the fabric's devices begin so; the others are Ethernet",
            source=sources.COREWEAVE,
        ),
        _FRONT,
        Entry(
            key="rdma",
            value="rdma/ib=1",
            reason="a yes, not a count: the pod gets all devices of its machine",
            source=sources.COREWEAVE_IB,
        ),
        *_FOR_MPI,
        *INTERFACES[1:],
    ),
    needs=(LOCKED_MEMORY, VERBS),
    refusals=_REFUSALS,
    devices=("rdma/ib",),
)
COREWEAVE_ROCE: Final = Profile(
    name="coreweave-roce",
    summary="CoreWeave's GB300 machines: RoCE on Spectrum-X.",
    source=sources.COREWEAVE,
    entries=(
        VERBS_NET,
        _NO_PLUGIN,
        _FRONT,
        *(
            Entry(
                key=f"env.{name}",
                value=value,
                reason="CoreWeave's recipe for this fabric, whose addresses are IPv6",
                source=sources.COREWEAVE,
                emission=EmitPolicy.VENDOR,
                since=since,
            )
            for name, value, since in (
                ("NCCL_IB_ADDR_FAMILY", "AF_INET6", "2.21"),
                ("NCCL_IB_ADDR_RANGE", "fd02::/16", "2.21"),
                ("NCCL_IB_TC", "96", ""),
                ("NCCL_IB_ADAPTIVE_ROUTING", "1", "2.16"),
            )
        ),
        Entry(
            key="env.DDP_LINT_IGNORE",
            value="N03,N11",
            reason="the recipe switches adaptive routing on, which NCCL documents as debugging, and names a class",
            source=sources.COREWEAVE,
            emission=EmitPolicy.VENDOR,
        ),
        Entry(
            key="networks",
            value="<the macvlan attachments of the cluster>",
            reason="16 of them, or a claim; --network names them",
            source=sources.COREWEAVE_ROCE,
            emission=EmitPolicy.OFF,
        ),
        *_FOR_MPI,
        *INTERFACES[1:],
    ),
    needs=(LOCKED_MEMORY, VERBS),
    refusals=_REFUSALS,
    devices=("rdma/",),
)


def _one_value(name: str, summary: str, devices: str, reason: str, *more: Entry, source: str) -> Profile:
    chosen = Entry(key="env.NCCL_IB_HCA", value=devices, reason=reason, source=source, emission=EmitPolicy.VENDOR)
    return Profile(
        name=name,
        summary=summary,
        source=source,
        entries=(VERBS_NET, chosen, *more, *INTERFACES),
        needs=(LOCKED_MEMORY, VERBS),
        refusals=(DISABLED,),
        devices=("rdma/", "nvidia.com/"),
    )


_ALL_MELLANOX: Final = "every device of the machine belongs to the fabric"
_NOT_THE_FIRST: Final = "the first device is the machine's Ethernet"

NEBIUS: Final = _one_value("nebius-ib", "Nebius: InfiniBand.", "mlx5", _ALL_MELLANOX, source=sources.SKYPILOT)
TOGETHER: Final = _one_value("together-ib", "Together: InfiniBand.", "mlx5", _ALL_MELLANOX, source=sources.SKYPILOT)
LAMBDA: Final = _one_value("lambda-ib", "Lambda: InfiniBand.", "^=mlx5_0", _NOT_THE_FIRST, source=sources.DSTACK)
CRUSOE: Final = _one_value(
    "crusoe-ib",
    "Crusoe: InfiniBand.",
    "^=mlx5_0",
    _NOT_THE_FIRST,
    Entry(
        key="env.NCCL_IB_MERGE_VFS",
        value="0",
        reason="the virtual functions are separate devices, and are not to be joined into one",
        source=sources.DSTACK,
        emission=EmitPolicy.VENDOR,
    ),
    Entry(
        key="env.NCCL_TOPO_FILE",
        value="<Crusoe's file for the machine, mounted>",
        reason="the virtual machine shows a PCI tree that is not the real one",
        source=sources.DSTACK,
        emission=EmitPolicy.OFF,
    ),
    source=sources.DSTACK,
)

PROFILES: Final = (COREWEAVE_IB, COREWEAVE_ROCE, NEBIUS, TOGETHER, CRUSOE, LAMBDA)
