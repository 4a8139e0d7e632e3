"""Command ``kubectl ddp wait``."""

from __future__ import annotations

import click

from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import seconds_of, target
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.errors import Interrupted
from kubectl_ddp.observe.waiting import DELETED, GOALS, parse_wait_condition, wait_for, wait_until_deleted
from kubectl_ddp.status.json_output import job_to_dict


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option(
    "--for", "what", default="complete", show_default=True, metavar="WHAT", help=f"One of {', '.join(GOALS)}."
)
@click.option("--timeout", metavar="TIME", help="Give up after this time, as in 90s or 10m; exit code 124.")
@shared_options("json", "yaml")
def wait(options: Options, job: str | None, *, what: str, timeout: str | None) -> None:
    """Wait until a condition of a job holds, and print nothing then.

    Exit code 10 means that the job's code failed, 11 that a machine failed, 12 that the job was deleted or suspended,
    and 124 that --timeout is over.
    """
    goal, seconds = parse_wait_condition(what), seconds_of("--timeout", timeout)
    backend, name = target(options, job)
    try:
        if goal is DELETED:
            wait_until_deleted(backend, name, timeout=seconds)
            return
        state = wait_for(backend, name, goal, timeout=seconds)
    except KeyboardInterrupt:
        raise Interrupted(f"Stopped waiting; job {name} continues.") from None
    if options.output is not None:
        print_output(job_to_dict(state), options.output)
