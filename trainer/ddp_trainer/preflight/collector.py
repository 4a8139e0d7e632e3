"""Collection of one node's report from the kernel, the resolver, the driver and files.

:func:`collect` is the entry point, and :class:`Order` has the parameters of a preflight.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ddp_trainer.common import constants
from ddp_trainer.common.constants import Env
from ddp_trainer.net.addresses import is_loopback
from ddp_trainer.net.network_interfaces import Interface, list_interfaces, route_from
from ddp_trainer.net.run_secret import RunSecret
from ddp_trainer.preflight import gpus, interface_selection, names
from ddp_trainer.preflight.json_codec import KEY_PURPOSE
from ddp_trainer.preflight.rdma import rdma
from ddp_trainer.preflight.schema import KernelLimits, ListenPorts, Report, Resolution
from ddp_trainer.preflight.software import collect_software

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
    """Same as :attr:`~ddp_trainer.preflight.schema.Facts.newcomer`."""
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
    usable = (each for each in found if each.is_up and not each.is_loopback)
    return next((address for each in usable for address in each.addresses if "%" not in address), "")


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
