"""Prerequisites of RDMA on this node: locked memory, verbs libraries, devices and huge pages."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ddp_trainer.preflight.schema import Rdma
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
