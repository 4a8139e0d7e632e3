"""Command ``kubectl ddp status``."""

from __future__ import annotations

import time

import click

from kubectl_ddp.cli.internal.command import CUSTOM_COLUMNS, JSONPATH, HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import resource, target
from kubectl_ddp.cli.internal.output import print_output, style
from kubectl_ddp.observe.result_annotations import persist_result
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.status.describe import header, why_no_ranks
from kubectl_ddp.status.job_tables import rank_table
from kubectl_ddp.status.json_output import job_to_dict


@click.command(cls=HelpfulCommand)
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
