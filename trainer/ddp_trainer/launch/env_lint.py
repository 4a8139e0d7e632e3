"""What is doubtful in the launcher's environment, by the rules of :mod:`ddp_trainer.common.lint` and the facts of the
node.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from ddp_trainer.common.constants import Env
from ddp_trainer.launch.host.endpoint import is_loopback

_CONCERNED: Final = (
    *("NCCL_", "TORCH", "PYTORCH_", "GLOO_", "TP_", "FI_", "RDMAV_", "UCX_", "CUDA_", "OMP_NUM_THREADS"),
    "LOCAL_RANK",
)
"""Beginnings of names that rules are about."""

_ABOUT_PODS: Final = re.compile(r"[Kk]\d\d")
"""Rules that `kubectl ddp lint` has beside ours; the same variable leaves them out."""

_RDMA: Final = Path("/sys/class/infiniband")


def doubts(environ: Mapping[str, str], *, nodes: int, nproc: int, endpoint: str = "", rdma: Path = _RDMA) -> list[str]:
    """One line per error and warning; never an error of its own.

    Args:
        environ: the launcher's, which is what workers get.
        nodes: the most of the run.
        nproc: workers of this node.
        endpoint: host that the nodes meet at; empty for none.
        rdma: where the kernel lists RDMA devices.
    """
    if not any(name.startswith(_CONCERNED) for name in environ):
        return []
    # Most runs have nothing to look at, and must not pay for the rules.
    from ddp_trainer.common.lint.catalogue import check, unknown_ids  # noqa: PLC0415
    from ddp_trainer.common.lint.model import Facts, Severity  # noqa: PLC0415
    from ddp_trainer.launch.host.network_interface import interface_to  # noqa: PLC0415

    facts = Facts(
        route=interface_to(environ.get(Env.POD_IP) or endpoint),
        interfaces=frozenset(name for _, name in socket.if_nameindex()),
        rdma_devices=tuple(sorted(os.listdir(rdma))) if rdma.is_dir() else (),  # noqa: PTH208 - names are wanted
        exists=os.path.exists,
        nodes=nodes,
        nproc=nproc,
        cpus=len(os.sched_getaffinity(0)),
        is_one_machine=is_loopback(environ.get(Env.POD_IP, "")) or is_loopback(endpoint),
    )
    ignored = environ.get(Env.LINT_IGNORE, "")
    lines = [
        f"{Env.LINT_IGNORE} names {word!r}, which is no rule; see docs/lint.md."
        for word in _unknown(unknown_ids(ignored))
    ]
    found = check(environ, facts, ignored)
    return [*lines, *(str(finding) for finding in found if finding.severity is not Severity.INFO)]


def _unknown(ids: Iterable[str]) -> Iterator[str]:
    return (word for word in ids if not _ABOUT_PODS.fullmatch(word))
