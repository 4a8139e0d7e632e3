"""Command ``kubectl ddp preflight``."""

from __future__ import annotations

import click

from kubectl_ddp.cli.internal.command import Options, shared_options
from kubectl_ddp.cli.internal.job_options import JobRequest, ProgramCommand, job_options


@click.command(cls=ProgramCommand)
@click.option("--strict", is_flag=True, help="Fail on warnings as well, such as a quota that is used up.")
@job_options
@shared_options("json", "yaml")
def preflight(options: Options, request: JobRequest, *, strict: bool) -> None:
    """Check whether a job can run in the cluster; changes nothing.

    Takes what submit takes. Checks the resources of the nodes, Kueue, quotas, volumes, Secrets, rights, and admission.
    Exit code 4 means that the job cannot run there, 5 that you may not submit it.
    """
    from kubectl_ddp.cli.setup.preflight_run import inspect_job  # noqa: PLC0415 - not needed for help and completion

    inspect_job(options, request, is_strict=strict)
