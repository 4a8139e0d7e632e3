"""Checks of the launcher's environment, by the rules of :mod:`ddp_trainer.common.lint` and the facts of the node."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.net.addresses import is_loopback

_CONCERNED: Final = (
    *("NCCL_", "TORCH_", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "CUDA_VISIBLE_DEVICES", "LOCAL_WORLD_SIZE"),
)
"""Prefixes of the variable names that rules are about."""

_RDMA: Final = Path("/sys/class/infiniband")


def lint_environment(
    environ: Mapping[str, str], *, nodes: int, nproc: int, endpoint: str = "", rdma: Path = _RDMA
) -> list[str]:
    """Return one line per finding, errors first. Findings never raise an error.

    Args:
        environ: Environment of the launcher, which the workers inherit.
        nodes: Maximum number of nodes of the run.
        nproc: Number of workers of this node.
        endpoint: Host of the rendezvous; empty for none.
        rdma: Directory in which the kernel lists RDMA devices.
    """
    if not any(name.startswith(_CONCERNED) for name in environ):
        return []
    # Most runs set no such variable and must not pay for the import of the rules.
    from ddp_trainer.common.lint import START_CHECKS, Facts, run_checks  # noqa: PLC0415
    from ddp_trainer.launch.host.network_interface import interface_to  # noqa: PLC0415

    facts = Facts(
        route=interface_to(environ.get(Env.POD_IP) or endpoint),
        interfaces=frozenset(name for _, name in socket.if_nameindex()),
        rdma_devices=tuple(sorted(os.listdir(rdma))) if rdma.is_dir() else (),  # noqa: PTH208 - names are wanted
        nodes=nodes,
        nproc=nproc,
        is_one_machine=is_loopback(environ.get(Env.POD_IP, "")) or is_loopback(endpoint),
    )
    return [str(finding) for finding in run_checks(START_CHECKS, environ, facts, environ.get(Env.LINT_IGNORE, ""))]
