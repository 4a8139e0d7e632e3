"""Command ``kubectl ddp clone``."""

from __future__ import annotations

import dataclasses

import click

from kubectl_ddp.cli.internal.command import Options, grouped_option, shared_options
from kubectl_ddp.cli.internal.job_lookup import target, warn_of_changed_script
from kubectl_ddp.cli.internal.job_options import (
    DRY_RUN,
    DRY_RUNS,
    JobRequest,
    ProgramCommand,
    change_options,
    prepare,
)
from kubectl_ddp.errors import UsageError


@click.command(cls=ProgramCommand)
@click.argument("job", required=False)
@click.option("--follow", is_flag=True, help="Print what all ranks write until the job ends, with progress on stderr.")
@click.option(
    "--wait",
    "waits",
    is_flag=True,
    help="Wait until the job ends, showing progress; the exit code reports the result.",
)
@grouped_option("--timeout", is_common=False, metavar="TIME", help="Stop waiting after this time; the job continues.")
@click.option(DRY_RUN, type=click.Choice(DRY_RUNS), default="none", help="Create nothing, as with submit.")
@grouped_option("--preflight", is_common=False, type=click.Choice(("off", "warn", "strict")), help="As with submit.")
@change_options
@shared_options("json", "yaml", "name")
def clone(
    options: Options,
    request: JobRequest,
    job: str | None,
    *,
    follow: bool,
    waits: bool,
    timeout: str | None,
    dry_run: str,
    preflight: str | None,
) -> None:
    """Submit a job again under another --name, with its code and the changes that the flags make.

    Values that you set for the job are kept. Values derived from them are derived again: other --gpus give other
    defaults for cores and memory. Words after '--' replace the arguments of its program.
    """
    from kubectl_ddp.backends.job_recovery import code_of, recover_spec  # noqa: PLC0415
    from kubectl_ddp.cli.jobs.submit_run import SubmitOptions, submit_prepared  # noqa: PLC0415
    from kubectl_ddp.spec.resolve import minimal_layer, origin_from_job  # noqa: PLC0415

    backend, name = target(options, job)
    if request.flags.get("name") in {None, name}:
        raise UsageError(f"The clone of '{name}' needs another name.", hint="Set it with --name NEW.")
    origin = backend.job(name).job
    spec = recover_spec(origin)
    if backend.where == "local" and not request.flags.keys() & {"script", "code", "module", "command"}:
        warn_of_changed_script(options, origin)
    here = dataclasses.replace(options, local=backend.where == "local")
    code = None if request.flags.keys() & {"code", "codeClaim", "module", "command"} else code_of(backend, spec)
    prepared = prepare(here, request, under=minimal_layer(spec, origin_from_job(name)), code=code)
    claim = prepared.spec.checkpoint_claim
    if not here.local and claim is not None and claim == spec.checkpoint_claim:
        options.print_message(
            f"warning: It uses the checkpoint claim '{claim}' of job {name}, continues from the checkpoints there, and "
            "must not run at the same time. --checkpoint-claim names another."
        )
    submit_options = SubmitOptions(follow=follow, waits=waits, timeout=timeout, dry_run=dry_run, preflight=preflight)
    submit_prepared(prepared, here, submit_options)
