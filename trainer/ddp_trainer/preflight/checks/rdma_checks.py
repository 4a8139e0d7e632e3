"""Checks of the network that ``NCCL_NET`` requests.

If that network is unusable, NCCL ends at the start or fails at the first transfer, with a message that does not name
the cause. Missing prerequisites therefore fail here. Without a request in ``NCCL_NET`` the check is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ddp_trainer.preflight.result import Finding, Status
from ddp_trainer.preflight.schema import Facts, Rdma, Report

_VERBS: Final = frozenset({"ib"})
_LIBFABRIC: Final = frozenset({"aws libfabric", "libfabric", "ofi"})
"""Names of networks. NCCL ignores their case."""
LEAST_LOCKED_BYTES: Final = 1 << 30
"""Limit below which NCCL cannot register its buffers: 4 MiB or more for each of several channels, peers and
protocols.
"""
_ACTIVE: Final = "ACTIVE"

_Missing = tuple[Status, str, str]


def rdma(facts: Facts) -> Iterator[Finding]:
    """Check locked memory, libraries, devices and huge pages of the requested network."""
    for report in facts.reports:
        net = report.software.environment.get("NCCL_NET", "").strip()
        is_libfabric = net.lower() in _LIBFABRIC
        if net.lower() not in _VERBS and not is_libfabric:
            yield Finding(Status.SKIP, report.name, "NCCL_NET selects a network without RDMA")
            continue
        for status, trouble, hint in _missing(report, is_libfabric=is_libfabric):
            yield Finding(status, report.name, f"NCCL_NET is {net!r}, and {trouble}", hint)


def _missing(report: Report, *, is_libfabric: bool) -> Iterator[_Missing]:
    found = report.rdma
    yield from _locked_memory(found)
    for library, error in found.libraries.items():
        if error:
            hint = "install libibverbs1, ibverbs-providers and librdmacm1 in the image, as our cuda image does"
            yield Status.FAIL, f"{library} cannot be loaded ({error})", hint
    if not any(found.libraries.values()) and not found.providers:
        yield Status.FAIL, "libibverbs has no driver here", "install ibverbs-providers in the image"
    yield from _devices(found)
    if is_libfabric and not found.huge_page_bytes:
        hint = "request them: hugepages-2Mi: 5120Mi, on machines that reserve them"
        yield Status.FAIL, "there are no huge pages of 2 MiB", hint


def _locked_memory(found: Rdma) -> Iterator[_Missing]:
    limit = found.locked_memory_bytes
    if limit is None or found.may_lock_memory:
        return
    status = Status.FAIL if limit < LEAST_LOCKED_BYTES else Status.WARN
    hint = "let the container runtime grant unlimited locked memory (LimitMEMLOCK=infinity), or ulimit -l unlimited"
    yield status, f"a process may lock {limit >> 10} KiB of memory", hint


def _devices(found: Rdma) -> Iterator[_Missing]:
    ask = "request the devices: --rdma RESOURCE=COUNT, or the claim of the fabric"
    if not found.ports:
        yield Status.FAIL, "there is no InfiniBand, RoCE or EFA device", ask
        return
    if not found.device_files:
        yield Status.FAIL, "no file /dev/infiniband/uverbs* can be opened", ask
    down = [port for port, state in found.ports.items() if state != _ACTIVE]
    if down:
        told = ", ".join(f"{port} is {found.ports[port]}" for port in down)
        status = Status.FAIL if len(down) == len(found.ports) else Status.WARN
        yield status, told, "look at the cable and the subnet manager: ibstat; NCCL_IB_HCA leaves out a port"
