"""Commands ``kubectl ddp status`` and ``top``, which show one job."""

from __future__ import annotations

import sys
import time

import click

from kubectl_ddp.cli.internal.command import CUSTOM_COLUMNS, JSONPATH, GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import resource, target
from kubectl_ddp.cli.internal.output import print_output, style
from kubectl_ddp.errors import Interrupted
from kubectl_ddp.observe.job_results import persist_result
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.status.describe import header, why_no_ranks
from kubectl_ddp.status.job_tables import job_to_dict, rank_table
from kubectl_ddp.status.rank_status import slowdown_by_rank


@click.command(cls=GroupedHelpCommand)
@click.argument("job", required=False)
@click.option("--ranks", is_flag=True, help="Show every rank: where it runs, its step, its speed, its phases.")
@shared_options("json", "yaml", "name", JSONPATH, CUSTOM_COLUMNS, has_header_flag=True)
def status(options: Options, job: str | None, *, ranks: bool) -> None:
    """Show the state, the progress and the first error of a job (default: the newest)."""
    backend, name = target(options, job)
    snapshot = backend.job(name, events=False)
    state = observe(backend, snapshot)
    persist_result(backend, snapshot.job, state)
    if options.output == "name":
        click.echo(resource(snapshot.job))
        return
    if options.output is not None:
        print_output(job_to_dict(state), options.output, has_header=not options.no_headers)
        return
    now = time.time()
    click.echo(header(state, now, style(options)))
    if ranks and (state.ranks or state.silent):
        click.echo()
        click.echo(rank_table(state, now).render(style(options), has_header=not options.no_headers))
    elif ranks:
        options.print_message("No rank reports metrics: " + why_no_ranks(state))


@click.command(cls=GroupedHelpCommand)
@click.argument("job", required=False)
@click.option("--once", is_flag=True, help="Print one table and exit (default when stdout is not a terminal).")
@shared_options("json", "yaml")
def top(options: Options, job: str | None, *, once: bool) -> None:
    """Show throughput, loss and the step of every rank, live (default: the newest job).

    A rank that is busy for 1.15 times as long as the median, while the others wait for it, is marked. The metrics are
    read from the pods: no Prometheus is needed. If the window is too small for all ranks, there is a row per pod, the
    slowest first. Press q to quit.
    """
    from kubectl_ddp.top.top_view import TopView  # noqa: PLC0415 - not needed for status

    backend, name = target(options, job)
    if options.output is not None:
        print_output(job_to_dict(observe(backend, backend.job(name, events=False))), options.output)
        return
    form = style(options)
    if once or not sys.stdout.isatty() or sys.platform == "win32":  # no terminal modes
        state = observe(backend, backend.job(name, events=False))
        picture: TopView | None = TopView(state=state, now=time.time(), slow=slowdown_by_rank(state.ranks))
    else:
        from kubectl_ddp.top.watch import watch  # noqa: PLC0415 - only for a terminal

        try:
            picture = watch(backend, name, form)
        except KeyboardInterrupt:
            raise Interrupted(f"Stopped watching; job {name} continues.") from None
    if picture is not None:
        click.echo("\n".join(picture.lines(form)))
