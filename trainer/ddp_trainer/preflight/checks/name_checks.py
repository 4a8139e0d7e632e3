"""Checks of the meeting, of node ranks, and of name resolution."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ddp_trainer.net.addresses import is_address, is_loopback
from ddp_trainer.preflight.result import Finding, Status
from ddp_trainer.preflight.schema import Facts


def node_count(facts: Facts) -> Iterator[Finding]:
    """Check that all nodes met."""
    if facts.trouble:
        yield Finding(Status.FAIL, facts.reports[0].name, facts.trouble, facts.trouble_hint)
        return
    count = len(facts.reports)
    if count >= facts.expected:
        return
    came = ", ".join(report.name for report in facts.reports)
    yield Finding(
        Status.WARN if count >= facts.least else Status.FAIL,
        "",
        f"{count} of {facts.expected} nodes came in time: {came}{_absent(facts)}",
        "the preflight output of a missing node has the reason; raise --timeout if nodes start late",
    )


def _absent(facts: Facts) -> str:
    ranks = {report.node_rank for report in facts.reports}
    if None in ranks:
        return ""
    absent = [str(rank) for rank in range(facts.expected) if rank not in ranks]
    word = "rank" if len(absent) == 1 else "ranks"
    return f"; node {word} {', '.join(absent[:20])} did not" if absent else ""


def ranks(facts: Facts) -> Iterator[Finding]:
    """Check that every node rank is claimed once."""
    claims = Counter(report.node_rank for report in facts.reports if report.node_rank is not None)
    for report in facts.reports:
        rank = report.node_rank
        if rank is None:
            continue
        if claims[rank] > 1:
            others = ", ".join(each.name for each in facts.reports if each.node_rank == rank and each is not report)
            message, hint = f"node rank {rank} is claimed here and on {others}", "give every node its own --node-rank"
        elif rank >= facts.expected:
            message = f"node rank {rank} is not below the {facts.expected} nodes of the run"
            hint = "count --node-rank from 0, and give all nodes the same --nnodes"
        else:
            continue
        yield Finding(Status.FAIL, report.name, message, hint)


def endpoint(facts: Facts) -> Iterator[Finding]:
    """Check that the endpoint's name resolves to the same place on all nodes."""
    truth = _expected_addresses(facts)
    has_many_machines = len({report.machine for report in facts.reports}) > 1 or len(facts.reports) < facts.expected
    for report in facts.reports:
        found = report.endpoint
        by_hosts = f" by /etc/hosts ({found.hosts_line})" if found.hosts_line else ""
        hint = f"make {found.name} lead to {', '.join(sorted(truth)) or 'the first node'} here: mend " + (
            "/etc/hosts" if found.hosts_line else "DNS (in Kubernetes: the headless Service and its selector)"
        )
        if not found.name or (is_address(found.name) and not is_loopback(found.name)):
            continue
        if not found.addresses:
            message = f"the endpoint's name {found.name} does not resolve{by_hosts}: {found.error}"
        elif has_many_machines and not report.is_host and all(map(is_loopback, found.addresses)):
            message = f"{found.name} leads to this node itself{by_hosts}: {', '.join(found.addresses)}"
        elif truth and not report.is_host and not truth & set(found.addresses):
            message = f"{found.name} leads to {', '.join(found.addresses)}{by_hosts}, elsewhere than on other nodes"
        else:
            continue
        yield Finding(Status.FAIL, report.name, message, hint)


def _expected_addresses(facts: Facts) -> set[str]:
    """Return the host's own addresses if the name resolves to them on some node, else the most frequent address."""
    said = [address for report in facts.reports for address in report.endpoint.addresses]
    said = [address for address in said if not is_loopback(address)]
    for host in (report for report in facts.reports if report.is_host):
        own = {address for interface in host.interfaces for address in interface.addresses}
        if own & set(said):
            return own & set(said)
    return {Counter(said).most_common(1)[0][0]} if said else set()


def reverse(facts: Facts) -> Iterator[Finding]:
    """Check that the name of each address resolves to that address."""
    for report in facts.reports:
        for address, where in report.astray.items():
            message = f"{address} leads back to {report.reverse.get(address, '')}, which leads to {where}"
            hint = "mend the PTR record or /etc/hosts; until then give addresses instead of names"
            yield Finding(Status.WARN, report.name, message, hint)
