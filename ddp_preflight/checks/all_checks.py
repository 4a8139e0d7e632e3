"""All checks in their order, and those of the node, its RDMA devices and its software.

If that network is unusable, NCCL ends at the start or fails at the first transfer, with a message that does not name
the cause. Missing prerequisites therefore fail here. Without a request in ``NCCL_NET`` the check is skipped.

Each is a function from all facts to findings; :func:`run_all_checks` runs them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ddp_preflight.checks import gpu_checks, network_checks
from ddp_preflight.schema import Facts, Finding, ProbeKind, Rdma, Report, Status, named
from ddp_trainer.common.constants import Path

_GIB: Final = 1 << 30
LEAST_SHARED_MEMORY_BYTES: Final = 256 << 20
"""Size below which NCCL runs out of space on a node with many GPUs. A container's default is 64 MiB."""
GOOD_SHARED_MEMORY_BYTES: Final = _GIB
"""Size that NCCL's documentation requests."""
LEAST_OPEN_FILES: Final = 1024
GOOD_OPEN_FILES: Final = 65536


def shared_memory(facts: Facts) -> Iterator[Finding]:
    """Check that /dev/shm has room for NCCL and loader workers."""
    for report in facts.reports:
        size, free = report.limits.shared_memory_bytes, report.limits.shared_memory_free_bytes
        if free >= GOOD_SHARED_MEMORY_BYTES:
            continue
        yield Finding(
            Status.FAIL if report.gpus and free < LEAST_SHARED_MEMORY_BYTES else Status.WARN,
            report.name,
            f"{Path.SHARED_MEMORY} has {free >> 20} of {size >> 20} MiB free; NCCL and data loaders need 1 GiB",
            "mount a memory-backed emptyDir there (docker: --shm-size 8g), and remove what dead jobs left in it",
        )


def open_files(facts: Facts) -> Iterator[Finding]:
    """Check that a rank may open a socket to each of its peers, in addition to its data."""
    for report in facts.reports:
        limit = report.limits.open_files
        if limit >= GOOD_OPEN_FILES:
            continue
        yield Finding(
            Status.FAIL if limit < LEAST_OPEN_FILES else Status.WARN,
            report.name,
            f"a process may open {limit} files; large worlds need {GOOD_OPEN_FILES}",
            f"ulimit -n {GOOD_OPEN_FILES} before the launch, or the container runtime's limit for nofile",
        )


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
    hint = "request the devices: --rdma RESOURCE=COUNT, or the claim of the fabric"
    if not found.ports:
        yield Status.FAIL, "there is no InfiniBand, RoCE or EFA device", hint
        return
    if not found.device_files:
        yield Status.FAIL, "no file /dev/infiniband/uverbs* can be opened", hint
    down = [port for port, state in found.ports.items() if state != _ACTIVE]
    if down:
        trouble = ", ".join(f"{port} is {found.ports[port]}" for port in down)
        status = Status.FAIL if len(down) == len(found.ports) else Status.WARN
        yield status, trouble, "look at the cable and the subnet manager: ibstat; NCCL_IB_HCA leaves out a port"


CLOCK_WARN_SECONDS: Final = 0.1
CLOCK_FAIL_SECONDS: Final = 1.0
"""Clock difference beyond which the reported first error of a run may be wrong, since clocks decide which was first."""

_MUST_AGREE: Final = ("python", "torch", "cuda", "hip", "nccl")
_MAY_DIFFER: Final = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_IB_HCA")
"""Interfaces, which may have other names on other nodes; the check ``interface`` covers them."""


def clock(facts: Facts) -> Iterator[Finding]:
    """Check that the clocks agree with the first node's, within the uncertainty of the measurement."""
    first = facts.reports[0].clock  # all zero, unless the others meet at a newcomer
    for report in facts.reports[1:]:
        ahead = report.clock.offset - first.offset
        skew = abs(ahead) - report.clock.uncertainty - first.uncertainty
        if skew <= CLOCK_WARN_SECONDS:
            continue
        way = "ahead of" if ahead > 0 else "behind"
        yield Finding(
            Status.FAIL if skew > CLOCK_FAIL_SECONDS else Status.WARN,
            report.name,
            f"the clock is {abs(ahead):.3f} s {way} the first node's",
            "start chrony or systemd-timesyncd on the node; logs and the first error are put in order by clocks",
        )


def versions(facts: Facts) -> Iterator[Finding]:
    """Check that Python, torch, CUDA, NCCL and the driver are the same on all nodes."""
    for name in (*_MUST_AGREE, "driver"):
        status = Status.FAIL if name in _MUST_AGREE else Status.WARN
        hint = "run the same image on all nodes" if name in _MUST_AGREE else "update the older driver"
        values = [report.software.versions.get(name, "") for report in facts.reports]
        yield from _report_mismatches(facts, status, name, values, hint)


def script(facts: Facts) -> Iterator[Finding]:
    """Check that all nodes would run the same file."""
    values = [report.software.script for report in facts.reports]
    if not any(values):
        yield Finding(Status.SKIP, "", "no script was named, so it was not compared")
    hint = "copy the script to all nodes, or mount it from one place"
    yield from _report_mismatches(facts, Status.FAIL, "script", values, hint)


def environment(facts: Facts) -> Iterator[Finding]:
    """Check that variables and installed packages are the same on all nodes."""
    known = {name for report in facts.reports for name in report.software.environment}
    hint = "set it on all nodes or on none"
    for name in sorted(known.difference(_MAY_DIFFER)):
        values = [report.software.environment.get(name, "") for report in facts.reports]
        yield from _report_mismatches(facts, Status.WARN, name, values, hint)
    hint = "compare `python -m pip freeze` of both nodes, or run the same image"
    values = [report.software.packages for report in facts.reports]
    yield from _report_mismatches(facts, Status.WARN, "the digest of installed packages", values, hint)


def _report_mismatches(facts: Facts, status: Status, what: str, values: Sequence[str], hint: str) -> Iterator[Finding]:
    """Yield the nodes whose value differs from that of most nodes, or from the first if all differ."""
    usual = Counter(values).most_common(1)[0][0]
    example = next(report.name for report, value in zip(facts.reports, values, strict=True) if value == usual)
    for report, value in zip(facts.reports, values, strict=True):
        if value != usual:
            message = f"{what} is {value or 'not there'} here, {usual or 'not there'} on {example}"
            yield Finding(status, report.name, message, hint)


@dataclass(frozen=True, slots=True)
class Check:
    """One check, a row of the table."""

    name: str
    find: Callable[[Facts], Iterable[Finding]]
    takes_two: bool = True
    """True if it compares nodes, so that one node alone gives no result."""


CHECKS: Final = (
    Check("meeting", network_checks.node_count, takes_two=False),
    Check("ranks", network_checks.ranks),
    Check("endpoint-name", network_checks.endpoint, takes_two=False),
    Check("reverse-name", network_checks.reverse, takes_two=False),
    Check("address-family", network_checks.families),
    Check("interface", network_checks.interface, takes_two=False),
    Check("mtu", network_checks.mtu),
    Check("rendezvous-port", network_checks.rendezvous_port),
    Check("random-port", partial(network_checks.ports, purpose=ProbeKind.RANDOM)),
    Check("clock", clock),
    Check("versions", versions),
    Check("script", script),
    Check("environment", environment),
    Check("gpus", gpu_checks.gpus, takes_two=False),
    Check("gpu-health", partial(gpu_checks.on_all_nodes, gpu_checks.health_of), takes_two=False),
    Check("gpu-links", partial(gpu_checks.on_all_nodes, gpu_checks.links_of), takes_two=False),
    Check("gpu-use", partial(gpu_checks.on_all_nodes, gpu_checks.use_of), takes_two=False),
    Check("rdma", rdma, takes_two=False),
    Check("shared-memory", shared_memory, takes_two=False),
    Check("open-files", open_files, takes_two=False),
)


def run_all_checks(facts: Facts) -> tuple[Finding, ...]:
    """Return all findings. The function is pure, so every node gets the same result.

    For a node that joins a running group, findings that exist without it are left out: the others already train with
    them.
    """
    found = tuple(finding for check in CHECKS for finding in _found(check, facts))
    others = tuple(report for report in facts.reports if report.node_rank != facts.newcomer)
    if facts.newcomer is None or not others:
        return found
    there = replace(facts, reports=others, expected=len(others), least=len(others))
    known = {finding for check in CHECKS for finding in _found(check, there)}
    return tuple(finding for finding in found if finding not in known)


def _found(check: Check, facts: Facts) -> list[Finding]:
    found = list(check.find(facts))
    if not found and check.takes_two and len(facts.reports) == 1:
        found = [Finding(Status.SKIP, "", "takes more than one node")]
    return named(check.name, found)
