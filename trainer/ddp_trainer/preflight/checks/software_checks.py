"""Checks of everything that must be equal on all nodes: clocks, versions, the script, the environment."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ddp_trainer.preflight.result import Finding, Status
from ddp_trainer.preflight.schema import Facts

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
