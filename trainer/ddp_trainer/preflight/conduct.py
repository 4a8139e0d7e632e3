"""One preflight on this node: listen, collect, meet, probe; what is found out goes into one :class:`Facts`."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

from ddp_trainer.contract import Env
from ddp_trainer.preflight.collect import Subject, collect
from ddp_trainer.preflight.facts import Facts, Listening, Report
from ddp_trainer.preflight.listener import Listener, why_taken
from ddp_trainer.preflight.meeting import Host, NobodyMet, meet
from ddp_trainer.preflight.probing import probe


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What to look at."""

    subject: Subject
    expected: int
    least: int
    meeting_port: int
    timeout: float
    """Seconds until all nodes must have come."""

    @property
    def is_alone(self) -> bool:
        """One node, which meets nobody."""
        return self.expected == 1


async def conduct(order: Order, environ: Mapping[str, str]) -> Facts:
    """Raises OSError when the script cannot be read."""
    loop = asyncio.get_running_loop()
    until = loop.time() + order.timeout
    host = Host(order.expected, until) if order.subject.is_host else None
    listener = Listener(uuid.uuid4().hex, environ.get(Env.POD_IP, ""), host.serve if host else None)
    if host:
        host.listens_with(listener)
    try:
        listening, trouble = await _listen(order, listener)
        # nvidia-smi and a dead resolver take seconds, in which others may knock.
        own = await loop.run_in_executor(None, collect, order.subject, listener.token, listening, environ)
        if order.is_alone:
            return Facts(reports=(own,))
        if trouble:
            hint = "end what listens there, or choose another port"
            return _alone(order, own, NobodyMet(f"nobody can be met here: {trouble}", hint))
        return await _together(order, own, host, until)
    finally:
        if host:
            await host.farewell()
        listener.close()


async def _listen(order: Order, listener: Listener) -> tuple[Listening, str]:
    """The doors of this node; and why the others cannot meet here, if they should and cannot."""
    listening = Listening(random=await listener.listen(0))
    trouble = ""
    wanted = order.subject.endpoint_port
    try:
        if wanted:
            listening = replace(listening, rendezvous=await listener.listen(wanted))
    except OSError as error:
        listening = replace(listening, taken=why_taken(wanted, error))
    if order.subject.is_host and not order.is_alone:
        try:
            await listener.listen(order.meeting_port)
        except OSError as error:
            trouble = why_taken(order.meeting_port, error)
    return listening, trouble


async def _together(order: Order, own: Report, host: Host | None, until: float) -> Facts:
    with ExitStack() as stack:
        try:
            meeting = host or stack.enter_context(
                closing(await meet(order.subject.meeting_host, order.meeting_port, until))
            )
            reports = await meeting.reports(own)
            probes = await meeting.probes(own.token, await probe(own, reports))
        except NobodyMet as error:
            return _alone(order, own, error)
    return Facts(reports=in_order(reports), probes=probes, expected=order.expected, least=order.least)


def _alone(order: Order, own: Report, error: NobodyMet) -> Facts:
    return Facts(
        reports=(own,), expected=order.expected, least=order.least, trouble=str(error), trouble_hint=error.hint
    )


def in_order(reports: Sequence[Report]) -> tuple[Report, ...]:
    """By rank, host first where nobody has one; names that are there twice get their rank or place behind them."""
    ranked = sorted(
        reports, key=lambda each: (each.node_rank is None, each.node_rank or 0, not each.is_host, each.name, each.token)
    )
    count = Counter(report.name for report in ranked)
    return tuple(
        replace(report, name=f"{report.name}/{place}") if count[report.name] > 1 else report
        for place, report in enumerate(ranked)
    )
