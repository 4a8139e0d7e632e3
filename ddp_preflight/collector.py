"""Inspection of this node: its GPUs, network interfaces, RDMA devices and software.

:func:`collect` is the entry point, and :class:`Order` has the parameters of a preflight.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import importlib.machinery
import os
import platform
import re
import resource
import socket
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from ddp_preflight import gpus, interface_selection, names
from ddp_preflight.listener import KEY_PURPOSE
from ddp_preflight.schema import KernelLimits, ListenPorts, Rdma, Report, Resolution, Software
from ddp_trainer.common import constants
from ddp_trainer.common.constants import Env
from ddp_trainer.net.addresses import is_loopback
from ddp_trainer.net.network_interfaces import Interface, list_interfaces, route_from
from ddp_trainer.net.run_secret import RunSecret
from ddp_trainer.process.process_tree import status_of

VERBS: Final = ("libibverbs.so.1", "librdmacm.so.1")
"""Libraries that NCCL and libfabric open by these names."""
_IPC_LOCK: Final = 14
"""Number of CAP_IPC_LOCK in <linux/capability.h>."""
_HUGE_PAGE_BYTES: Final = 2 << 20
_PROVIDERS: Final = ("usr/lib/*/libibverbs", "usr/lib64/libibverbs", "usr/lib/libibverbs")


def rdma(root: Path = Path("/"), libraries: Sequence[str] = VERBS) -> Rdma:
    """Return the present state.

    Args:
        root: Root directory of the files to read.
        libraries: Names of the libraries to load.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return Rdma(
        locked_memory_bytes=None if soft == resource.RLIM_INFINITY else soft,
        may_lock_memory=_has_capability(root / "proc", _IPC_LOCK),
        libraries={name: _loading_error(name) for name in libraries},
        providers=sum(len(list(root.glob(f"{folder}/*-rdmav*.so"))) for folder in _PROVIDERS),
        ports=_ports(root / "sys/class/infiniband"),
        device_files=sum(os.access(file, os.R_OK | os.W_OK) for file in root.glob("dev/infiniband/uverbs*")),
        huge_page_bytes=_free_hugepage_bytes(root),
    )


def _loading_error(library: str) -> str:
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return str(error)[:200]
    return ""


def _has_capability(proc: Path, number: int) -> bool:
    return bool(int(status_of("self", proc).get("CapEff", "0"), 16) >> number & 1)


def _ports(devices: Path) -> dict[str, str]:
    """Return the state of each port, for example ``ACTIVE`` from ``4: ACTIVE`` in its file ``state``."""
    found: dict[str, str] = {}
    for file in sorted(devices.glob("*/ports/*/state")):
        with contextlib.suppress(OSError):  # the device was removed meanwhile
            found[f"{file.parts[-4]}/{file.parts[-2]}"] = file.read_text().rpartition(":")[2].strip()
    return found


def _free_hugepage_bytes(root: Path) -> int:
    """Return the bytes of free huge pages of the machine, within the limit of this container."""
    try:
        free = int((root / "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages").read_text()) * _HUGE_PAGE_BYTES
    except (OSError, ValueError):
        return 0
    try:
        limit = (root / "sys/fs/cgroup/hugetlb.2MB.max").read_text().strip()
        return free if limit == "max" else min(free, int(limit))
    except (OSError, ValueError):
        return free


_PREFIXES: Final = (
    "NCCL_",
    "GLOO_",
    "TP_SOCKET_",
    "TORCH_",
    "PYTORCH_",
    "CUDA_",
    "CUBLAS_",
    "UCX_",
    "FI_",
    "OMP_",
    "MKL_",
    "PYTHONHASHSEED",
)
"""Prefixes of the variables that change how ranks compute or communicate."""

_NODE_OWN: Final = {"CUDA_VISIBLE_DEVICES", "TORCHELASTIC_RESTART_COUNT"}
"""Variables that may differ between nodes."""

_LONGEST_VALUE: Final = 256
_NCCL_PACKAGES: Final = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")
_DIGITS: Final = 16
_ASSIGNMENT: Final = re.compile(r"""^(\w+)(?:: [^=]+)? = ['"](.*)['"]$""", re.MULTILINE)
"""Name and text of an assignment, with or without an annotation."""


def collect_software(script: str, driver: str, driver_cuda: str, environ: Mapping[str, str]) -> Software:
    """Return the software of this Python.

    Args:
        script: Path of the script; empty for none.
        driver: Version of the GPU driver.
        driver_cuda: CUDA version that the driver supports.
        environ: Environment of the process.

    Raises:
        OSError: The script cannot be read.
    """
    versions = {
        "python": platform.python_version(),
        **torch_versions(),
        "driver": driver,
        "driver_cuda": driver_cuda,
    }
    return Software(
        versions={name: version for name, version in versions.items() if version},
        packages=package_digest(),
        script=hashlib.sha256(Path(script).read_bytes()).hexdigest()[:_DIGITS] if script else "",
        environment={
            name: value[:_LONGEST_VALUE]
            for name, value in sorted(environ.items())
            if name.startswith(_PREFIXES) and name not in _NODE_OWN
        },
    )


def torch_versions() -> dict[str, str]:
    """Return the versions of torch, CUDA, HIP and NCCL from the file that torch's build wrote; empty without torch."""
    spec = importlib.machinery.PathFinder.find_spec("torch", sys.path)
    if spec is None or not spec.origin:
        return {}
    try:
        values = dict(_ASSIGNMENT.findall(Path(spec.origin).with_name("version.py").read_text()))
    except OSError:
        return {}
    return {
        "torch": values.get("__version__", ""),
        "cuda": values.get("cuda", ""),
        "hip": values.get("hip", ""),
        "nccl": _nccl_version(),
    }


def _nccl_version() -> str:
    for name in _NCCL_PACKAGES:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return ""


def package_digest() -> str:
    """Return a digest of the names of the metadata folders, which contain name and version. No file is read."""
    names = {
        entry.name
        for folder in map(Path, dict.fromkeys(sys.path))
        if folder.is_dir()
        for entry in folder.iterdir()
        if entry.suffix in {".dist-info", ".egg-info"}
    }
    return hashlib.sha256("\n".join(sorted(names)).encode()).hexdigest()[:_DIGITS]


_MOST_REVERSED: Final = 8
"""Most addresses whose names are looked up. A node with many more hosts pods of others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Parameters of a preflight: the run, this node, and its part in the run."""

    expected: int
    """Nodes of the run."""
    least: int
    """Nodes with which the run can start."""
    timeout: float
    """Seconds within which all nodes must arrive."""
    newcomer: int | None
    """Same as :attr:`~ddp_preflight.schema.Facts.newcomer`."""
    secret: RunSecret | None
    """Secret that authenticates the nodes; None to accept every peer."""
    name: str
    node_rank: int | None
    local_world_size: int
    endpoint_host: str
    """Host of the rendezvous endpoint; empty for a run of one node."""
    endpoint_port: int
    meeting_host: str
    meeting_port: int
    is_host: bool
    leads_here: bool
    """True if the name of the meeting host resolves to this machine."""
    script: str

    @property
    def key(self) -> bytes | None:
        """Key of the preflight's listeners. A preflight of one node uses a random one."""
        secret = self.secret or (RunSecret.random() if self.is_single_node else None)
        return None if secret is None else secret.key(KEY_PURPOSE)

    @property
    def is_single_node(self) -> bool:
        """True for a run of one node, which meets no other."""
        return self.expected == 1


def collect(order: Order, token: str, listening: ListenPorts, environ: Mapping[str, str]) -> Report:
    """Return the report of this node without its clock offset, which needs another node.

    Raises:
        OSError: The script cannot be read.
    """
    hostname = names.forward(socket.gethostname())
    found = list_interfaces()
    cards = gpus.gpus()
    endpoint = names.forward(order.endpoint_host) if order.endpoint_host else Resolution(name="")
    own = [address for interface in found if not interface.is_loopback for address in interface.addresses]
    reverse = _reverse([address for address in own if "%" not in address][:_MOST_REVERSED])
    return Report(
        token=token,
        name=order.name,
        node_rank=order.node_rank,
        local_world_size=order.local_world_size,
        machine=machine(),
        is_host=order.is_host,
        endpoint=endpoint,
        endpoint_port=order.endpoint_port,
        hostname=hostname,
        reverse=reverse,
        astray={
            address: where for address, name in reverse.items() if name and (where := _address_mismatch(address, name))
        },
        route=_route(order, endpoint, found, environ),
        interfaces=found,
        gloo=interface_selection.gloo(found, hostname, environ),
        nccl=interface_selection.nccl(found, environ),
        listening=listening,
        software=collect_software(order.script, cards.driver, cards.cuda, environ),
        limits=_limits(),
        gpus=cards.gpus,
        gpu_note=cards.error,
        has_driver=cards.has_driver,
        rdma=rdma(),
    )


def machine() -> str:
    """Return an identifier of boot and network namespace. Nodes that share it share their ports and interfaces."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}-{Path('/proc/self/ns/net').stat().st_ino}"


def _route(order: Order, endpoint: Resolution, found: tuple[Interface, ...], environ: Mapping[str, str]) -> str:
    """Return the address of this node that the others use."""
    if environ.get(Env.POD_IP):
        return environ[Env.POD_IP]
    own = {address for interface in found for address in interface.addresses}
    meeting = names.forward(order.meeting_host).addresses if order.meeting_host else ()
    for target in (*meeting, *endpoint.addresses):
        if not is_loopback(target) and (target in own or route_from(target)):
            return target if target in own else route_from(target)
    usable = (nic for nic in found if nic.is_up and not nic.is_loopback)
    return next((address for nic in usable for address in nic.addresses if "%" not in address), "")


def _reverse(addresses: Sequence[str]) -> dict[str, str]:
    """Look up the names of all addresses in parallel, since each lookup may take as long as the name server's
    timeout.
    """
    with ThreadPoolExecutor(max_workers=_MOST_REVERSED) as pool:
        return dict(zip(addresses, pool.map(names.back, addresses), strict=True))


def _address_mismatch(address: str, name: str) -> str:
    found = names.forward(name)
    return "" if address in found.addresses else ", ".join(found.addresses) or "nowhere"


def _limits() -> KernelLimits:
    """Return the limits of shared memory and open files."""
    size = free = 0
    with contextlib.suppress(OSError):  # a missing /dev/shm counts as one of size 0
        volume = os.statvfs(constants.Path.SHARED_MEMORY)
        size, free = volume.f_blocks * volume.f_frsize, volume.f_bavail * volume.f_frsize
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = 1 << 30
    return KernelLimits(
        shared_memory_bytes=size,
        shared_memory_free_bytes=free,
        open_files=unlimited if soft == resource.RLIM_INFINITY else soft,
    )
