"""Fabrics of machines outside of clouds: CPUs, one machine, TCP, InfiniBand, RoCE."""

from __future__ import annotations

from typing import Final

from kubectl_ddp.fabrics import sources
from kubectl_ddp.fabrics.model import ConflictingVariable, EmitPolicy, Entry, Need, Profile

INTERFACES: Final = (
    Entry(
        key="env.NCCL_SOCKET_IFNAME",
        value="=<interface of the route to the master>",
        reason="names differ from node to node; by itself NCCL takes the first that is neither lo nor docker",
        source=sources.env("NCCL_SOCKET_IFNAME"),
        emission=EmitPolicy.CONTAINER,
    ),
    Entry(
        key="env.GLOO_SOCKET_IFNAME",
        value="<the same, a plain name>",
        reason="gloo knows no prefixes; by itself it takes the interface of the host name's address",
        source=sources.TORCH,
        emission=EmitPolicy.CONTAINER,
    ),
    Entry(
        key="env.TP_SOCKET_IFNAME",
        value="<the same, a plain name>",
        reason="torch's RPC takes names as gloo does",
        source=sources.TORCH,
        emission=EmitPolicy.CONTAINER,
    ),
)
"""Interface settings that every multi-node fabric needs; only the pod can determine the values."""

LOCKED_MEMORY: Final = Need(
    message="The container runtime of the machines must leave locked memory unlimited: RDMA pins what it sends, and "
    "the capability IPC_LOCK has no effect for a user that is not root.",
    source=sources.NON_ROOT_MEMLOCK,
)
VERBS: Final = Need(
    message="The image must hold libibverbs1, ibverbs-providers and librdmacm1, as our cuda image does, and the "
    "machines nvidia-peermem or DMA-BUF.",
    source=sources.NCCL_TROUBLESHOOTING,
    packages=("libibverbs1", "ibverbs-providers", "librdmacm1"),
)

_ONE_NODE: Final = "one machine needs none of it, and it switches off what is fastest there"
_NO_DEVICES: Final = "sockets use no InfiniBand devices"

GLOO_CPU: Final = Profile(
    name="gloo-cpu",
    summary="CPU cores, collectives by gloo over TCP.",
    source=sources.TORCH,
    entries=INTERFACES[1:],
    refusals=(ConflictingVariable(name="NCCL_*", reason="gloo reads no variable of NCCL's", source=sources.TORCH),),
    has_gpus=False,
)
SINGLE_NODE: Final = Profile(
    name="single-node-nvlink",
    summary="GPUs of one machine: NVLink, NVLink SHARP and shared memory, all found by NCCL itself.",
    source=sources.ENV,
    needs=(
        Need(
            message="Shared memory must hold 1 GiB or more; --shm sets its size.",
            source=sources.NCCL_SHARED_MEMORY,
        ),
    ),
    refusals=(
        ConflictingVariable(name="NCCL_P2P_DISABLE", reason=_ONE_NODE, source=sources.env("NCCL_P2P_DISABLE")),
        ConflictingVariable(name="NCCL_SHM_DISABLE", reason=_ONE_NODE, source=sources.env("NCCL_SHM_DISABLE")),
        ConflictingVariable(
            name="NCCL_IB_DISABLE", reason="on one machine no network is used", source=sources.env("NCCL_IB_DISABLE")
        ),
    ),
    largest=1,
)
TCP: Final = Profile(
    name="tcp",
    summary="TCP between nodes that have no RDMA network.",
    source=sources.ENV,
    entries=(
        Entry(
            key="env.NCCL_NET",
            value="Socket",
            reason="selects TCP, so that NCCL does not use a plugin of the image instead",
            source=sources.env("NCCL_NET"),
        ),
        *INTERFACES,
        Entry(
            key="env.NCCL_SOCKET_FAMILY",
            value="AF_INET or AF_INET6",
            reason="the family of the master's address",
            source=sources.env("NCCL_SOCKET_FAMILY"),
            emission=EmitPolicy.CONTAINER,
        ),
        Entry(
            key="env.NCCL_SOCKET_NTHREADS",
            value="4",
            reason="fills networks of 100 Gb/s; AWS and GCP are detected by NCCL",
            source=sources.env("NCCL_SOCKET_NTHREADS"),
            emission=EmitPolicy.OFF,
        ),
        Entry(
            key="env.NCCL_NSOCKS_PERTHREAD",
            value="4",
            reason="the same; threads times sockets must not exceed 64",
            source=sources.env("NCCL_NSOCKS_PERTHREAD"),
            emission=EmitPolicy.OFF,
        ),
    ),
    needs=(
        Need(
            message="Every port must be open between the pods of the job, as its NetworkPolicy allows.",
            source=sources.NCCL_TROUBLESHOOTING,
        ),
        Need(
            message="Google's machines with 100 Gb/s and no other network need its plugin Fast Socket in the image, "
            "and --fabric none: NCCL_NET=Socket keeps plugins out.",
            source=sources.FAST_SOCKET,
            is_vendors=True,
        ),
    ),
    refusals=(ConflictingVariable(name="NCCL_IB_*", reason=_NO_DEVICES, source=sources.env("NCCL_NET")),),
)

FAILS_CLOSED: Final = "requires RDMA: without it, NCCL fails at the start instead of falling back to TCP"

VERBS_NET: Final = Entry(key="env.NCCL_NET", value="IB", reason=FAILS_CLOSED, source=sources.env("NCCL_NET"))
HCA_OF_THE_SITE: Final = Entry(
    key="env.NCCL_IB_HCA",
    value="=mlx5_0,... or ^=mlx5_8",
    reason="only where a machine has devices that are not of the fabric; names differ from site to site",
    source=sources.env("NCCL_IB_HCA"),
    emission=EmitPolicy.OFF,
)
DISABLED: Final = ConflictingVariable(
    name="NCCL_IB_DISABLE",
    reason="it disables the network that NCCL_NET selects",
    source=sources.env("NCCL_IB_DISABLE"),
)
DEVICES: Final = ("rdma/", "nvidia.com/hostdev", "nvidia.com/rdma", "openshift.io/", "intel.com/", "mellanox.com/")
"""Prefixes of the resource names of InfiniBand and RoCE devices, which the cluster's operator chooses."""

IB: Final = Profile(
    name="ib",
    summary="InfiniBand.",
    source=sources.ENV,
    entries=(VERBS_NET, HCA_OF_THE_SITE, *INTERFACES),
    needs=(LOCKED_MEMORY, VERBS),
    refusals=(
        DISABLED,
        ConflictingVariable(
            name="NCCL_IB_GID_INDEX", reason="InfiniBand has no RoCE GIDs", source=sources.env("NCCL_IB_GID_INDEX")
        ),
        ConflictingVariable(
            name="NCCL_IB_TC", reason="it is a traffic class of Ethernet", source=sources.env("NCCL_IB_TC")
        ),
        ConflictingVariable(
            name="NCCL_SOCKET_IFNAME",
            value="ib*",
            reason="sockets over InfiniBand work only where IPoIB is routed",
            source=sources.env("NCCL_SOCKET_IFNAME"),
        ),
    ),
    devices=DEVICES,
)
ROCE: Final = Profile(
    name="roce",
    summary="RDMA over Ethernet.",
    source=sources.ENV,
    entries=(
        VERBS_NET,
        HCA_OF_THE_SITE,
        Entry(
            key="env.NCCL_IB_GID_INDEX",
            value="3",
            reason="older versions take index 0, which is RoCE v1; newer ones choose, and with Multus the index "
            "differs from pod to pod",
            source=sources.MULTUS,
            before="2.21",
        ),
        Entry(
            key="env.NCCL_IB_ADDR_RANGE",
            value="<network of the site>",
            reason="chooses where a device has several GIDs",
            source=sources.env("NCCL_IB_ADDR_RANGE"),
            emission=EmitPolicy.OFF,
            since="2.21",
        ),
        Entry(
            key="env.NCCL_IB_TC",
            value="<traffic class of the site>",
            reason="only where the switches have a queue for it; another site's value loses packets",
            source=sources.env("NCCL_IB_TC"),
            emission=EmitPolicy.OFF,
        ),
        Entry(
            key="env.NCCL_IB_QPS_PER_CONNECTION",
            value="2",
            reason="2 to 4 on fabrics that balance by ECMP",
            source=sources.env("NCCL_IB_QPS_PER_CONNECTION"),
            emission=EmitPolicy.OFF,
        ),
        Entry(
            key="networks",
            value="<one attachment per rail>",
            reason="each rail is a separate network; --network names its NetworkAttachmentDefinition",
            source=sources.NETWORK_OPERATOR,
            emission=EmitPolicy.OFF,
        ),
        *INTERFACES,
    ),
    needs=(
        LOCKED_MEMORY,
        VERBS,
        Need(
            message="Switches and NICs must agree on PFC, ECN and one MTU for all rails.",
            source=sources.NCCL_TROUBLESHOOTING,
        ),
    ),
    refusals=(
        DISABLED,
        ConflictingVariable(
            name="NCCL_IB_GID_INDEX",
            reason="with Multus the index differs from pod to pod, and NCCL chooses by itself since 2.21",
            source=sources.MULTUS,
        ),
    ),
    devices=DEVICES,
)

PROFILES: Final = (GLOO_CPU, SINGLE_NODE, TCP, IB, ROCE)
