"""Command ``kubectl ddp top``."""

from __future__ import annotations

import sys
import time

import click

from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import target
from kubectl_ddp.cli.internal.output import print_output, style
from kubectl_ddp.errors import Interrupted
from kubectl_ddp.observe.scrape import observe
from kubectl_ddp.status.json_output import job_to_dict
from kubectl_ddp.status.stragglers import slowdown_by_rank
from kubectl_ddp.top.top_view import TopView


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option("--once", is_flag=True, help="Print one table and exit (default when stdout is not a terminal).")
@shared_options("json", "yaml")
def top(options: Options, job: str | None, *, once: bool) -> None:
    """Show throughput, loss and the step of every rank, live (default: the newest job).

    A rank that is busy for 1.15 times as long as the median, while the others wait for it, is marked. The metrics are
    read from the pods: no Prometheus is needed. If the window is too small for all ranks, there is a row per pod, the
    slowest first. Press q to quit.
    """
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
