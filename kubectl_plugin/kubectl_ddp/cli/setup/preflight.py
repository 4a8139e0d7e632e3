"""Command ``kubectl ddp preflight``."""

from __future__ import annotations

import click

from kubectl_ddp.cli.internal.job_options import JobRequest, ProgramCommand, job_options
from kubectl_ddp.cli.internal.options import Options
from kubectl_ddp.cli.internal.shared_flags import shared_options


@click.command(cls=ProgramCommand)
@click.option("--strict", is_flag=True, help="Fail for warnings too, such as having to wait.")
@job_options
@shared_options("json", "yaml")
def preflight(options: Options, request: JobRequest, *, strict: bool) -> None:
    """Say whether a job can run in the cluster, and whether at once; changes nothing.

    Takes what submit takes. Looks at room on the machines, Kueue, quotas, volumes, Secrets, rights, and what admission
    would say. Exits with 4 when the job cannot run there, with 5 when you may not submit it.
    """
    from kubectl_ddp.cli.setup.preflight_run import inspect_job  # noqa: PLC0415 - not needed for help and completion

    inspect_job(options, request, is_strict=strict)
