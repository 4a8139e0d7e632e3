"""Checks of the network between nodes, and of their names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from ddp_preflight.interface_selection import GLOO_VARIABLE, NCCL_VARIABLE
from ddp_preflight.schema import Choice, Facts, Finding, Outcome, Probe, ProbeKind, Report, Status
from ddp_trainer.net.addresses import is_address, is_loopback

_FIX: Final = {
    Outcome.REFUSED: "a firewall rejects it, or the address is another machine's: allow TCP between all nodes",
    Outcome.TIMED_OUT: "a firewall, NetworkPolicy or security group drops it: allow TCP on all ports between the nodes",
    Outcome.NO_ROUTE: "there is no route, or the node lacks that address family: compare `ip route` and `ip -6 route`",
    Outcome.STRANGER: "another program answers there: a proxy, a service mesh, or another machine with that address",
}


def interface(facts: Facts) -> Iterator[Finding]:
    """Check that gloo and NCCL would listen where the other nodes can reach them."""
    for report in facts.reports:
        for library, variable, chosen, purpose in (
            ("gloo", GLOO_VARIABLE, report.gloo, ProbeKind.GLOO),
            ("NCCL", NCCL_VARIABLE, report.nccl, ProbeKind.NCCL),
        ):
            failed = _failed(facts, report, purpose)
            if trouble := _interface_problem(facts, report, chosen, failed):
                # Without a GPU, NCCL is not used, so only an explicit setting of it can be wrong.
                matters = purpose is ProbeKind.GLOO or report.gpus or chosen.why.startswith(variable) or chosen.error
                status = Status.FAIL if matters else Status.WARN
                yield Finding(status, report.name, f"{library} {trouble}", _interface_hint(report, variable))


def _interface_problem(facts: Facts, report: Report, chosen: Choice, failed: Sequence[Probe]) -> str:
    if chosen.error:
        return f"has no interface: {chosen.error}"
    is_alone = all(peer.machine == report.machine for peer in facts.reports)
    where = f"would listen on {chosen.address} ({chosen.interface}), by {chosen.why}"
    if is_loopback(chosen.address) and not is_alone:
        return f"{where}, where no other node can reach it"
    return f"{where}, which {_sources(facts, failed)}" if failed else ""


def _interface_hint(report: Report, variable: str) -> str:
    owner = next((nic.name for nic in report.interfaces if report.route in nic.addresses), "")
    if not owner:
        return f"set {variable} to the interface that leads to the other nodes"
    return f"export {variable}={'=' if variable == NCCL_VARIABLE else ''}{owner} on this node"


def families(facts: Facts) -> Iterator[Finding]:
    """Check that all nodes have the same address families, IPv4 and IPv6."""
    by_node = {report.token: _families(report) for report in facts.reports}
    everybody = set().union(*by_node.values())
    choices = {_family(report.gloo.address) for report in facts.reports if report.gloo.address}
    for report in facts.reports:
        own = by_node[report.token]
        wanted = {_family(address) for address in report.endpoint.addresses}
        if own and wanted and not own & wanted and not all(map(is_loopback, report.endpoint.addresses)):
            yield Finding(
                Status.FAIL,
                report.name,
                f"the endpoint {report.endpoint.name} has {_join_names(wanted)} "
                f"only, this node has {_join_names(own)} only",
                "give both the same family; a pod network is single-stack or dual-stack as a whole",
            )
        elif missing := everybody - own:
            others = [peer.name for peer in facts.reports if missing & by_node[peer.token]]
            yield Finding(
                Status.FAIL if len(choices) > 1 else Status.WARN,
                report.name,
                f"no {_join_names(missing)} here, while {', '.join(others[:3])} has it{_gloo_families(facts, choices)}",
                "give all nodes both families, or keep the ranks to one: NCCL_SOCKET_FAMILY, and GLOO_SOCKET_IFNAME or "
                "host names that lead to that family first",
            )


def mtu(facts: Facts) -> Iterator[Finding]:
    """Check that all nodes have the same MTU. Otherwise long packets may be lost while short ones arrive."""
    sizes = {report.token: _route_mtu(report) for report in facts.reports}
    usual = Counter(size for size in sizes.values() if size).most_common(1)
    for report in facts.reports:
        own = sizes[report.token]
        if own and usual and own != usual[0][0]:
            example = next(peer.name for peer in facts.reports if sizes[peer.token] == usual[0][0])
            message = f"packets of {own} bytes at most here, of {usual[0][0]} on {example}"
            hint = "give the interfaces one MTU; a run that hangs at its first large message has met this"
            yield Finding(Status.WARN, report.name, message, hint)


def _route_mtu(report: Report) -> int:
    return next((nic.mtu for nic in report.interfaces if report.route in nic.addresses), 0)


def _families(report: Report) -> set[str]:
    """Return the families of the addresses that another node could use."""
    return {
        _family(address)
        for nic in report.interfaces
        if nic.is_up and not nic.is_loopback
        for address in nic.addresses
        if "%" not in address
    }


def _family(address: str) -> str:
    return "IPv6" if ":" in address else "IPv4"


def _join_names(families_: set[str]) -> str:
    return " and ".join(sorted(families_))


def _gloo_families(facts: Facts, choices: set[str]) -> str:
    if len(choices) < 2:
        return ""
    uses = ", ".join(f"{_family(report.gloo.address)} on {report.name}" for report in facts.reports[:4])
    return f"; gloo would use {uses}"


def rendezvous_port(facts: Facts) -> Iterator[Finding]:
    """Check that the rendezvous port is free on each node and reachable from each other node."""
    yield from ports(facts, ProbeKind.RENDEZVOUS)
    for report in facts.reports:
        if report.listening.taken and report.is_host:
            hint = "end what listens there, or choose another port; two jobs on one machine need a port each"
            yield Finding(Status.FAIL, report.name, report.listening.taken, hint)
    for report in facts.reports:
        endpoint_probes = [
            probe for probe in facts.probes if probe.source == report.token and probe.purpose is ProbeKind.ENDPOINT
        ]
        if endpoint_probes and all(probe.outcome is not Outcome.OK for probe in endpoint_probes):
            tried = ", ".join(f"{probe.address}:{probe.port} {probe.outcome}" for probe in endpoint_probes)
            message = f"the endpoint {report.endpoint.name} cannot be reached: {tried}"
            yield Finding(Status.FAIL, report.name, message, _FIX[endpoint_probes[0].outcome])


def ports(facts: Facts, purpose: ProbeKind) -> Iterator[Finding]:
    """Check that each port that is probed for this purpose can be reached from all other nodes."""
    for report in facts.reports:
        if failed := _failed(facts, report, purpose):
            where = f"{failed[0].address}:{failed[0].port}"
            yield Finding(Status.FAIL, report.name, f"{where} {_sources(facts, failed)}", _FIX[failed[0].outcome])


def _failed(facts: Facts, target: Report, purpose: ProbeKind) -> list[Probe]:
    return [
        probe
        for probe in facts.probes
        if probe.target == target.token and probe.purpose is purpose and probe.outcome is not Outcome.OK
    ]


def _sources(facts: Facts, failed: Sequence[Probe]) -> str:
    """Return the failed probes as a phrase: ``cannot be reached from a (timed out), b (refused)``."""
    by_token = {report.token: report.name for report in facts.reports}
    listed = ", ".join(f"{by_token.get(probe.source, '?')} ({probe.outcome})" for probe in failed[:4])
    more = f" and {len(failed) - 4} more" if len(failed) > 4 else ""
    return f"cannot be reached from {listed}{more}"


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
            others = ", ".join(peer.name for peer in facts.reports if peer.node_rank == rank and peer is not report)
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
    resolved = [address for report in facts.reports for address in report.endpoint.addresses]
    resolved = [address for address in resolved if not is_loopback(address)]
    for host in (report for report in facts.reports if report.is_host):
        own = {address for interface in host.interfaces for address in interface.addresses}
        if own & set(resolved):
            return own & set(resolved)
    return {Counter(resolved).most_common(1)[0][0]} if resolved else set()


def reverse(facts: Facts) -> Iterator[Finding]:
    """Check that the name of each address resolves to that address."""
    for report in facts.reports:
        for address, where in report.astray.items():
            message = f"{address} leads back to {report.reverse.get(address, '')}, which leads to {where}"
            hint = "mend the PTR record or /etc/hosts; until then give addresses instead of names"
            yield Finding(Status.WARN, report.name, message, hint)
