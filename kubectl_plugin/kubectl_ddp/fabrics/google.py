"""Google Cloud: TCPX, TCPXO, and RDMA with Google's plugin gIB."""

from __future__ import annotations

import json
from typing import Final

from kubectl_ddp.fabrics import sources
from kubectl_ddp.fabrics.model import ConflictingVariable, EmitPolicy, Entry, Need, Profile
from kubectl_ddp.fabrics.plain import INTERFACES, LOCKED_MEMORY

_LIBRARIES: Final = "/usr/local/nvidia/lib64"
_GIB: Final = "/usr/local/gib"


def _ignored(rules: str) -> Entry:
    """Return the entry that disables lint ``rules`` which the values of Google's script violate."""
    return Entry(
        key="env.DDP_LINT_IGNORE",
        value=rules,
        reason="Google's script sets variables that NCCL documents as debugging, a GID index, protocols, defaults",
        source=sources.GUEST_CONFIG,
        emission=EmitPolicy.VENDOR,
    )


def _network_annotations(networks: dict[str, str], source: str) -> tuple[Entry, ...]:
    """Annotations that attach networks, by the name of the interface in the pod."""
    attached = [
        {"interfaceName": name, "network": network} for name, network in {"eth0": "default", **networks}.items()
    ]
    return (
        Entry(
            key="annotation.networking.gke.io/default-interface",
            value="eth0",
            reason="the cluster's own network stays the default route",
            source=source,
            emission=EmitPolicy.VENDOR,
        ),
        Entry(
            key="annotation.networking.gke.io/interfaces",
            value=json.dumps(attached, separators=(",", ":")),
            reason="attaches the networks of the GPUs under the names that Google's guide gives them",
            source=source,
            emission=EmitPolicy.VENDOR,
        ),
    )


_SHELL: Final = Need(
    message="The image must hold bash: a shell of it sets the environment before the launcher starts.",
    source=sources.GUEST_CONFIG,
    packages=("bash",),
)
_TCPX_VALUES: Final = {
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_ALGO": "Ring,Tree",
    "NCCL_PROTO": "Simple",
    "NCCL_CROSS_NIC": "0",
    "NCCL_NET_GDR_LEVEL": "PIX",
    "NCCL_P2P_PXN_LEVEL": "0",
    "NCCL_GPUDIRECTTCPX_SOCKET_IFNAME": "eth1,eth2,eth3,eth4",
    "NCCL_GPUDIRECTTCPX_CTRL_DEV": "eth0",
    "NCCL_DYNAMIC_CHUNK_SIZE": "524288",
    "NCCL_P2P_NET_CHUNKSIZE": "524288",
    "NCCL_P2P_PCI_CHUNKSIZE": "524288",
    "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
    "NCCL_BUFFSIZE": "4194304",
    "NCCL_NSOCKS_PERTHREAD": "4",
    "NCCL_SOCKET_NTHREADS": "1",
    "NCCL_GPUDIRECTTCPX_PROGRAM_FLOW_STEERING_WAIT_MICROS": "500000",
    "NCCL_GPUDIRECTTCPX_UNIX_CLIENT_PREFIX": "/run/tcpx",
    "NCCL_GPUDIRECTTCPX_TX_BINDINGS": "eth1:8-21,112-125;eth2:8-21,112-125;eth3:60-73,164-177;eth4:60-73,164-177",
    "NCCL_GPUDIRECTTCPX_RX_BINDINGS": "eth1:22-35,126-139;eth2:22-35,126-139;eth3:74-87,178-191;eth4:74-87,178-191",
}
_DAEMONS_DEVICES: Final = "".join(
    f"- path: /dev/{name}\n" for name in (*(f"nvidia{number}" for number in range(8)), "nvidiactl", "nvidia-uvm")
)
"""YAML in an annotation, as Google's injector of devices reads it."""
_OTHER_PLUGIN: Final = "it belongs to another of Google's networks"

TCPX: Final = Profile(
    name="gcp-tcpx",
    summary="Google's a3-highgpu machines: GPUDirect-TCPX.",
    source=sources.TCPX,
    entries=(
        Entry(
            key="env.NCCL_NET",
            value="GPUDirectTCPX_v7",
            reason="the name of plugins 3.1 in NCCL's log; without the plugin NCCL fails at the start instead of "
            "falling back to TCP",
            source=sources.TCPX_LOG,
            emission=EmitPolicy.VENDOR,
        ),
        *(
            Entry(
                key=f"env.{name}",
                value=value,
                reason="Google's recipe for this machine, tested as a whole",
                source=sources.TCPX,
                emission=EmitPolicy.VENDOR,
            )
            for name, value in _TCPX_VALUES.items()
        ),
        Entry(
            key="env.DDP_LINT_IGNORE",
            value="N03,N30",
            reason="the recipe has variables that NCCL documents as debugging, and values that are the default",
            source=sources.TCPX,
            emission=EmitPolicy.VENDOR,
        ),
        Entry(
            key="libraryPath",
            value=_LIBRARIES,
            reason="where the machine's libraries, the plugin among them, are mounted",
            source=sources.TCPX,
            emission=EmitPolicy.VENDOR,
        ),
        *_network_annotations({f"eth{number}": f"vpc{number}" for number in range(1, 5)}, sources.TCPX),
        Entry(
            key="annotation.devices.gke.io/container.tcpx-daemon",
            value=_DAEMONS_DEVICES,
            reason="hands the GPUs to the daemon beside the job, which the cluster adds",
            source=sources.TCPX,
            emission=EmitPolicy.VENDOR,
        ),
        *INTERFACES[1:],
    ),
    needs=(
        Need(
            message="The cluster must add the container tcpx-daemon (NET_ADMIN; 2.0.12 for plugin 3.1.9), its socket "
            f"/run/tcpx and the machine's libraries at {_LIBRARIES} to every pod, in a namespace that Pod "
            "Security does not hold to 'restricted'; this program adds no directory of the machine and no privilege.",
            source=sources.TCPX,
            is_grave=True,
        ),
        _SHELL,
    ),
    refusals=(
        ConflictingVariable(name="NCCL_FASTRAK_*", reason=_OTHER_PLUGIN, source=sources.TCPX),
        ConflictingVariable(name="NCCL_TUNER_*", reason=_OTHER_PLUGIN, source=sources.TCPX),
    ),
)
_BY_THE_SCRIPT: Final = "Google's script sets about 20 variables that must match the plugin on the machine"

TCPXO: Final = Profile(
    name="gcp-tcpxo",
    summary="Google's a3-megagpu machines: GPUDirect-TCPXO.",
    source=sources.TCPXO,
    entries=(
        Entry(
            key="env.NCCL_NET",
            value="FasTrak",
            reason="the plugin's name; without the plugin NCCL fails at the start instead of falling back to TCP",
            source=sources.FASTRAK,
            emission=EmitPolicy.VENDOR,
        ),
        Entry(
            key="load",
            value=f"{_LIBRARIES}/nccl-env-profile.sh",
            reason=f"{_BY_THE_SCRIPT}; copied values are refused by its checker when the plugin changes",
            source=sources.GUEST_CONFIG,
        ),
        _ignored("N03,N05,N30,N33"),
        Entry(
            key="env.NCCL_LIB_DIR",
            value=_LIBRARIES,
            reason="the script looks for its files there",
            source=sources.TCPXO,
        ),
        Entry(
            key="env.NCCL_FASTRAK_LLCM_DEVICE_DIRECTORY",
            value="/dev/aperture_devices",
            reason="where the plugin finds its devices",
            source=sources.TCPXO,
        ),
        Entry(
            key="libraryPath",
            value=_LIBRARIES,
            reason="where the machine's libraries, the plugin among them, are mounted",
            source=sources.TCPXO,
            emission=EmitPolicy.VENDOR,
        ),
        *_network_annotations({f"eth{number}": f"vpc{number}" for number in range(1, 9)}, sources.TCPXO),
        *INTERFACES[1:],
    ),
    needs=(
        Need(
            message="The cluster must add the daemon tcpgpudmarxd (NET_ADMIN, NET_BIND_SERVICE; 1.0.21 for plugin "
            f"1.0.15), /dev/aperture_devices and the machine's libraries at {_LIBRARIES} to every pod, in a "
            "namespace that Pod Security does not hold to 'restricted'; this program adds no directory of the machine "
            "and no privilege.",
            source=sources.TCPXO,
            is_grave=True,
        ),
        _SHELL,
        Need(
            message="No further gVNIC network may be attached: it takes one of the eight.",
            source=sources.issue("NVIDIA/aicr", 381),
        ),
    ),
    refusals=(
        *(
            ConflictingVariable(
                name=name, reason="the checker refuses values beside those of its script", source=sources.GUEST_CONFIG
            )
            for name in ("NCCL_PROTO", "NCCL_ALGO", "NCCL_BUFFSIZE", "NCCL_NET_GDR_LEVEL", "NCCL_TUNER_*", "NCCL_P2P_*")
        ),
    ),
)

_GIB_COMMON: Final = (
    _ignored("N03,N10,N11,N30"),
    Entry(
        key="env.NCCL_NET",
        value="gIB",
        reason="the plugin's name; without the plugin NCCL fails at the start instead of falling back to TCP",
        source=sources.GIB,
    ),
    Entry(
        key="load",
        value=f"{_GIB}/scripts/set_nccl_env.sh",
        reason="Google's script sets what suits the machine and the version of the plugin",
        source=sources.GIB,
    ),
    Entry(
        key="libraryPath",
        value=f"{_GIB}/lib64:{_LIBRARIES}",
        reason="the plugin, and the machine's driver",
        source=sources.GIB,
    ),
)
_GIB_NEEDS: Final = (
    _SHELL,
    Need(
        message=f"gIB must be at {_GIB}, in the image or mounted by the cluster, and the driver at {_LIBRARIES}; a "
        "mount from the machine needs a namespace that Pod Security does not hold to 'restricted', and this program "
        "adds none.",
        source=sources.GIB,
        is_grave=True,
        is_vendors=True,
    ),
    LOCKED_MEMORY,
)
_GIB_REFUSALS: Final = (
    ConflictingVariable(
        name="NCCL_TUNER_CONFIG_PATH",
        reason="the file's name differs between machines; the script knows it",
        source=sources.GIB,
    ),
    ConflictingVariable(name="NCCL_IB_GID_INDEX", reason="the script sets it where it is needed", source=sources.GIB),
)
GIB: Final = Profile(
    name="gcp-gib",
    summary="Google's a3-ultragpu, a4 and a4x machines: RDMA networks attached by annotation.",
    source=sources.GIB,
    entries=(
        *_GIB_COMMON,
        Entry(
            key="env.NCCL_SOCKET_IFNAME",
            value="=eth0",
            reason="the network of the pods; =eth0,eth1 where gvnic-1 is attached too",
            source=sources.GIB,
        ),
        *_network_annotations({f"eth{number + 2}": f"rdma-{number}" for number in range(8)}, sources.GIB),
        *INTERFACES[1:],
    ),
    needs=_GIB_NEEDS,
    refusals=_GIB_REFUSALS,
)
GIB_DRA: Final = Profile(
    name="gcp-gib-dra",
    summary="The same machines and a4x-max: RDMA devices claimed from GKE's managed DRANET.",
    source=sources.GIB_DRA,
    entries=(
        *_GIB_COMMON,
        Entry(
            key="claim.rdma",
            value="mrdma.google.com=8",
            reason="all RDMA devices of the machine, attached by the network driver instead of by annotations",
            source=sources.GIB_DRA,
        ),
        *INTERFACES,
    ),
    needs=(
        *_GIB_NEEDS,
        Need(
            message="The node pool must have accelerator-network-profile=auto, and the cluster Kubernetes 1.34 or "
            "newer.",
            source=sources.GIB_DRA,
        ),
    ),
    refusals=_GIB_REFUSALS,
)

PROFILES: Final = (TCPX, TCPXO, GIB, GIB_DRA)
