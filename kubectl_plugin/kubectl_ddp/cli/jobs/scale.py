"""Command ``kubectl ddp scale``."""

from __future__ import annotations

import time
from typing import Final

import click

from ddp_trainer.common.parallel_dims import LayoutError, LayoutRange
from kubectl_ddp.backends.base import Backend
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import changed, seconds_of, target
from kubectl_ddp.cli.internal.progress import show_progress
from kubectl_ddp.errors import Interrupted, UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.observe.result_annotations import persist_result
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.observe.waiting import parse_wait_condition, wait_for
from kubectl_ddp.spec.layout import spare_ranks
from kubectl_ddp.status.job_state import JobState, State
from kubectl_ddp.util.process import location_flags, program
from kubectl_ddp.util.text_table import pluralize

_PATIENCE_SECONDS: Final = 120.0
"""Seconds to wait for ranks that trained before (default of --timeout)."""


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option("--nnodes", type=click.IntRange(min=1), required=True, metavar="N", help="New number of nodes.")
@click.option(
    "--wait/--no-wait",
    "waits",
    default=None,
    help="Wait until the new number of ranks trains, showing progress (default when they report metrics).",
)
@click.option("--timeout", metavar="TIME", help="Stop waiting after this time (default 2m); the change remains.")
@click.option("--dry-run", is_flag=True, help="Print what would change, without changing it.")
@shared_options("json", "yaml", "name")
def scale(
    options: Options, job: str | None, *, nnodes: int, waits: bool | None, timeout: str | None, dry_run: bool
) -> None:
    """Change the number of nodes of a running job (default: the newest).

    Prints the effect on the ranks, and waits until the ranks report the new world size.
    """
    seconds = seconds_of("--timeout", timeout)
    backend, name = target(options, job, changes=True)
    snapshot = backend.job(name)
    before = observe(backend, snapshot)
    persist_result(backend, snapshot.job, before)
    per_node = job_kinds.processes_per_node(snapshot.job)
    if waits and before.uses_torchrun:
        raise UsageError(
            f"The ranks of job '{name}' report no world size, because its launcher is torchrun.",
            hint="Leave --wait out.",
        )
    size = pluralize(nnodes, "node")
    backend.scale(name, nnodes, dry_run=dry_run)
    if options.output is None:  # a rejected change has no effect to print
        options.print_message(effect(before, nnodes, per_node) + left_over(snapshot.job, nnodes * per_node))
    seconds_taken = None
    action = "unchanged" if before.nodes.training == nnodes else "scaled"
    message = f"{action} at {size}" if action == "unchanged" else f"{action} to {size}"
    message += " (dry run)" if dry_run else ""
    if options.output is None:
        changed(options, backend, name, action, message)
    waits = before.world_size is not None and before.state is State.RUNNING if waits is None else waits
    if waits and not dry_run:
        seconds_taken = _confirm(options, backend, before, nnodes * per_node, seconds)
        ranks = nnodes * per_node
        options.print_message(f"The world has {pluralize(ranks, 'rank')} after {seconds_taken:.1f} s.")
    if options.output is not None:
        facts = {"nodes": nnodes, "nodesBefore": before.nodes.training, "ranks": nnodes * per_node, "dryRun": dry_run}
        changed(options, backend, name, action, message, **facts, confirmedAfterSeconds=seconds_taken)


def effect(before: JobState, nodes: int, per_node: int) -> str:
    """Describe the effect of a new number of nodes, in one or two sentences."""
    then, now = before.nodes.training, nodes
    if then == now:
        return f"Job {before.name} has {pluralize(then, 'node')} already; nothing changes."
    ranks = f"{then} → {now} nodes, {then * per_node} → {now * per_node} ranks"
    if before.state is not State.RUNNING:
        return f"Job {before.name}: {ranks}, once it runs; it is {before.state} now."
    what = (
        "training continues when the new pods have joined" if now > then else "the pods with the highest numbers leave"
    )
    if before.uses_torchrun:
        return f"Job {before.name}: {ranks}; torchrun restarts all worker processes."
    return (
        f"Job {before.name}: {ranks}; {what}, with one re-form. The reference trainer keeps the global batch, and each "
        f"rank computes {'less' if now > then else 'more'} of it; a script of your own may see another batch."
    )


def left_over(job: Object, ranks: int) -> str:
    """Return a sentence about ranks that the job's layout cannot use; empty if there are none."""
    try:
        layouts = LayoutRange.parse(str(job_kinds.submitted_spec(job).get("parallel") or ""))
    except LayoutError:  # no layout, or one of a newer version
        return ""
    if not (spare := spare_ranks(layouts, ranks)):
        return ""
    return f" Its layout '{layouts}' has no place for {spare} of {pluralize(ranks, 'rank')}."


def _confirm(options: Options, backend: Backend, before: JobState, ranks: int, timeout: float | None) -> float:
    """Wait until the job has that number of ranks, and return the seconds. Raises TimedOut and errors that end the
    job.
    """
    begun = time.monotonic()
    goal = parse_wait_condition(f"world-size={ranks}")
    try:
        with show_progress(backend, options) as display:
            wait_for(backend, before.name, goal, timeout=timeout or _PATIENCE_SECONDS, seen=display.seen)
    except KeyboardInterrupt:
        raise Interrupted(
            f"Stopped waiting; job {before.name} continues, and will have {pluralize(ranks, 'rank')}.",
            hint=f"Wait again with '{program()} wait {before.name} --for={goal.text}{location_flags()}'.",
        ) from None
    return time.monotonic() - begun
