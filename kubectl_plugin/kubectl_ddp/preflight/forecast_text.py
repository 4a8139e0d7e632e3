"""Sentences about the quota that a job waits for, and about the jobs that have to end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubectl_ddp.preflight.kueue_forecast import Forecast, QuotaHolder
from kubectl_ddp.preflight.kueue_quota import describe_share
from kubectl_ddp.preflight.quantities import format_quantity
from kubectl_ddp.status.describe import about
from kubectl_ddp.util.invocation import program
from kubectl_ddp.util.text_table import pluralize

MOST_NAMED: Final = 3
"""Maximum number of jobs in a sentence."""
MOST_HOLDERS: Final = 5


def quota_lines(forecast: Forecast) -> Iterator[str]:
    """Yield a line for each quota of the requested resources, and for each job that holds quota."""
    queue = forecast.cluster_queue
    yield from (f"quota of '{queue}', {describe_share(share, wanted)}" for share, wanted in forecast.quotas)
    yield from (f"holds quota: {describe_holder(holder, queue)}" for holder in forecast.holders[:MOST_HOLDERS])
    if (more := len(forecast.holders) - MOST_HOLDERS) > 0:
        yield f"holds quota: {pluralize(more, 'more job')}"
    requested = {share.resource for share, _ in forecast.quotas}
    for (flavor, resource), amount in forecast.unseen.items():
        if resource in requested:
            yield f"holds quota: jobs that may not be read, {format_quantity(resource, amount)} of flavor '{flavor}'"


def describe_holder(holder: QuotaHolder, queue: str) -> str:
    """Describe a job that holds quota: its name, namespace, size, priority and expected end."""
    borrows = f" through ClusterQueue '{holder.cluster_queue}'" if holder.cluster_queue != queue else ""
    eta = holder.progress.eta_seconds
    end = "end unknown" if eta is None else f"{about(eta)} to go"
    size = f"{pluralize(holder.pods, 'pod')}, priority {holder.priority}"
    return f"{holder.name} in namespace {holder.namespace}{borrows} ({size}), {end}"


def when_sentence(forecast: Forecast) -> str:
    """Return a sentence with the jobs that have to end, and when they do."""
    if not forecast.quotas:
        return "It begins when enough of the jobs that hold the quota have ended."
    if forecast.is_never_enough:
        return "The queue can never have enough of it."
    if forecast.must_end is None:
        return "The jobs that you may see do not hold enough of it; when the others end is unknown."
    if forecast.is_enough:
        return "There is enough now."
    names = [_name(holder) for holder in forecast.must_end]
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    ahead = ["the jobs ahead of it"] if forecast.is_after_ahead else []
    *first, last = [*names[:MOST_NAMED], *more, *ahead]
    named = f"{', '.join(first)} and {last}" if first else last
    named += " ends" if len(forecast.must_end) == 1 and not ahead else " have ended"
    eta = forecast.eta_seconds
    when = "; when is unknown" if eta is None else f", in {about(eta)}"
    return " ".join([f"There is enough when {named}{when}.", *_shrinking(forecast)])


def _shrinking(forecast: Forecast) -> Iterator[str]:
    for holder in forecast.must_end or ():
        if (size := forecast.shrink_to.get(holder.uid)) is not None:
            command = f"{program()} scale {holder.name} --nnodes {size} -n {holder.namespace}"
            yield f"Instead of ending, {_name(holder)} can shrink to {pluralize(size, 'node')} ('{command}')."


def _name(holder: QuotaHolder) -> str:
    return f"{holder.namespace}/{holder.name}"
