"""Command ``kubectl ddp list``."""

from __future__ import annotations

import time

import click

from kubectl_ddp.backends.select import target_backends
from kubectl_ddp.cli.internal.command_help import HelpfulCommand
from kubectl_ddp.cli.internal.job_lookup import (
    jobs_of,
    no_job,
    parse_job_name,
    print_output,
    resource,
    style,
)
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.cli.internal.shared_flags import shared_options
from kubectl_ddp.errors import NotFound
from kubectl_ddp.observe.job_list import observe_jobs
from kubectl_ddp.status.job_tables import job_table
from kubectl_ddp.status.json_output import job_list_to_dict
from kubectl_ddp.util.gc_tuning import at_rest
from kubectl_ddp.util.nearest import suggest_close_match


@click.command("list", cls=HelpfulCommand)
@click.argument("jobs", nargs=-1)
@shared_options("wide", "json", "yaml", "name", all_namespaces=True)
def list_jobs(options: Options, jobs: tuple[str, ...]) -> None:
    """List jobs of this machine and of the cluster: all of them, or those that are named."""
    with at_rest():  # short-lived; collecting cycles among ten thousand pods takes a fifth of the time
        _list(options, [parse_job_name(job) for job in jobs])


def _list(options: Options, names: list[str]) -> None:
    backends = target_backends(options)
    found = jobs_of(backends, options)
    if names:
        there = {str(snapshot.job["metadata"]["name"]) for _, snapshot in found}
        found = [each for each in found if each[1].job["metadata"]["name"] in names]
        for name in dict.fromkeys(names):
            if name not in there:
                meant = suggest_close_match(name, there)
                missing = NotFound(f"There is no job '{name}'.", hint=meant or "'list' without a name shows all jobs.")
                if not found:
                    raise missing
                options.print_message(f"warning: {missing}")
    if options.output == "name":
        for _, snapshot in found:
            click.echo(resource(snapshot.job))
        return
    states = observe_jobs(found)
    if options.output in {"json", "yaml"}:
        print_output(job_list_to_dict(states), options.output)
    elif states:
        table = job_table(states, time.time(), wide=options.output == "wide", namespaced=options.all_namespaces)
        click.echo(table.render(style(options)))
    else:
        options.print_message(str(no_job(backends, options)))
