"""Command ``kubectl ddp submit``."""

from __future__ import annotations

import click

from kubectl_ddp.cli.internal.command import Options, grouped_option, shared_options
from kubectl_ddp.cli.internal.job_options import DRY_RUN, DRY_RUNS, JobRequest, ProgramCommand, job_options


@click.command(cls=ProgramCommand)
@click.option("--follow", is_flag=True, help="Print what all ranks write until the job ends, with progress on stderr.")
@click.option(
    "--wait",
    "waits",
    is_flag=True,
    help="Wait until the job ends, showing progress; the exit code reports the result.",
)
@grouped_option("--timeout", is_common=False, metavar="TIME", help="Stop waiting after this time; the job continues.")
@click.option(
    DRY_RUN,
    type=click.Choice(DRY_RUNS),
    default="none",
    help="Create nothing: 'client' only renders, 'server' lets the API server check.",
)
@click.option(
    "--build",
    is_flag=False,
    flag_value="",
    metavar="[DIR]",
    help="Build DIR/Dockerfile (default: beside the job file) and push it as the image.",
)
@grouped_option(
    "--preflight",
    is_common=False,
    type=click.Choice(("off", "warn", "strict")),
    help="Check that the job can run in the cluster: 'strict' (default) rejects one that cannot, 'warn' only warns.",
)
@grouped_option(
    "--replace",
    "replaces",
    is_common=False,
    is_flag=True,
    help="Delete the job of this name first, and what is deleted with it.",
)
@grouped_option(
    "-y",
    "--yes",
    is_common=False,
    is_flag=True,
    help="With --replace: delete a job that has not ended without confirmation.",
)
@job_options
@shared_options("json", "yaml", "name")
def submit(
    options: Options,
    request: JobRequest,
    *,
    follow: bool,
    waits: bool,
    timeout: str | None,
    dry_run: str,
    build: str | None,
    preflight: str | None,
    replaces: bool,
    yes: bool,
) -> None:
    """Run SCRIPT, a module or a job file on a cluster; with --local on this machine.

    Words after '--' are arguments of the program. The job continues when this command has ended.
    """
    from kubectl_ddp.cli.jobs.submit_run import SubmitOptions, submit_job  # noqa: PLC0415 - not needed for help and completion

    submit_job(
        options,
        request,
        SubmitOptions(
            follow=follow,
            waits=waits,
            timeout=timeout,
            dry_run=dry_run,
            preflight=preflight,
            build=build,
            replaces=replaces,
            yes=yes,
        ),
    )
