"""Sequence of one preflight on this node: listen, collect, meet, probe.

:func:`run_preflight` runs the :class:`Order` of the command line, and returns the results as one :class:`Facts`.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import aclosing, closing, nullcontext
from dataclasses import replace

from ddp_preflight.collector import Order, collect
from ddp_preflight.exchange import ExchangeFailed, Host, HostClient, connect_to_host
from ddp_preflight.listener import PreflightServer, bind_error_message, probe
from ddp_preflight.schema import Facts, ListenPorts, Report
from ddp_trainer.common.constants import Env
from ddp_trainer.net.addresses import is_loopback


async def run_preflight(order: Order, environ: Mapping[str, str]) -> Facts:
    """Run the preflight and return its facts.

    Raises:
        OSError: The script cannot be read.
    """
    until = asyncio.get_running_loop().time() + order.timeout
    token = uuid.uuid4().hex
    host = Host(token, order.expected, until) if order.is_host else None
    listener = PreflightServer(token, _where(environ), order.key, host.serve if host else None)
    async with aclosing(listener):
        if order.is_single_node:
            return Facts(reports=(await _collect_report(order, listener, environ),))
        meeting: Host | HostClient | ExchangeFailed
        try:
            if host:
                await _open(listener, order.meeting_port)
            meeting = host or await connect_to_host(order.meeting_host, order.meeting_port, until, order.key)
        except ExchangeFailed as error:
            meeting = error
        own = await _collect_report(order, listener, environ)
        if isinstance(meeting, Host) and not order.leads_here:
            meeting = await _choose_role(order, own, meeting, until)
        with closing(meeting) if isinstance(meeting, HostClient) else nullcontext():
            facts = await _exchange_facts(order, own, meeting)
        if host:
            await host.wait_for_clients()
        return facts


def _where(environ: Mapping[str, str]) -> str:
    """Return the address to listen on: every address, except if pods are simulated on one machine.

    Such pods share its ports, and have a loopback address each.
    """
    address = environ.get(Env.POD_IP, "")
    return address if address and is_loopback(address) else ""


async def _open(listener: PreflightServer, port: int) -> None:
    """Listen on the meeting port. Raises ExchangeFailed if that fails."""
    try:
        await listener.listen(port)
    except OSError as error:
        hint = "end what listens there, or choose another port"
        raise ExchangeFailed(f"this node cannot host the meeting: {bind_error_message(port, error)}", hint) from error


async def _choose_role(order: Order, own: Report, host: Host, until: float) -> Host | HostClient:
    """Decide the role of a node of rank 0 if the meeting host's name does not resolve to it.

    If the node that the name resolves to also hosts, this node becomes a client, and the table shows two nodes of one
    rank. Otherwise the name is wrong on this node, which remains the host for the others.
    """
    hosting = asyncio.ensure_future(host.reports(own))
    looking = asyncio.ensure_future(connect_to_host(order.meeting_host, order.meeting_port, until, order.key))
    await asyncio.wait({hosting, looking}, return_when=asyncio.FIRST_COMPLETED)
    if looking.done() and looking.exception() is None:
        hosting.cancel()
        return looking.result()
    looking.cancel()
    await hosting
    return host


async def _collect_report(order: Order, listener: PreflightServer, environ: Mapping[str, str]) -> Report:
    """Collect the report. The rendezvous port is taken only now, because the host may be on this machine too."""
    listening = ListenPorts(random=await listener.listen(0))
    wanted = order.endpoint_port
    try:
        if wanted:
            listening = replace(listening, rendezvous=await listener.listen(wanted))
    except OSError as error:
        listening = replace(listening, taken=bind_error_message(wanted, error))
    # A faulty driver or a dead resolver takes seconds, during which other nodes may probe this one.
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(None, collect, order, listener.token, listening, environ)


async def _exchange_facts(order: Order, own: Report, meeting: Host | HostClient | ExchangeFailed) -> Facts:
    facts = Facts(reports=(own,), expected=order.expected, least=order.least, newcomer=order.newcomer)
    try:
        if isinstance(meeting, ExchangeFailed):
            raise meeting
        own = replace(own, is_host=isinstance(meeting, Host))
        reports = await meeting.reports(own)
        probes = await meeting.gather_probes(own.token, await probe(own, reports, order.key))
    except ExchangeFailed as error:
        return replace(facts, reports=(own,), trouble=str(error), trouble_hint=error.hint)
    return replace(facts, reports=in_order(reports), probes=probes)


def in_order(reports: Sequence[Report]) -> tuple[Report, ...]:
    """Sort reports by rank, and by name with the host first without ranks.

    Duplicate names get their position as a suffix.
    """
    ranked = sorted(
        reports,
        key=lambda report: (
            report.node_rank is None,
            report.node_rank or 0,
            not report.is_host,
            report.name,
            report.token,
        ),
    )
    count = Counter(report.name for report in ranked)
    return tuple(
        replace(report, name=f"{report.name}/{place}") if count[report.name] > 1 else report
        for place, report in enumerate(ranked)
    )
