"""Command ``kubectl ddp bundle``."""

from __future__ import annotations

import io
import os
import sys
import time
from pathlib import Path

import click

from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.job_lookup import target
from kubectl_ddp.errors import DdpError, UsageError
from kubectl_ddp.util.terminal import raw


@click.command(cls=HelpfulCommand)
@click.argument("job", required=False)
@click.option(
    "-O",
    "--file",
    "path",
    metavar="FILE",
    help="Output file, or '-' for stdout (default JOB-TIME.tar.gz in the current directory).",
)
@shared_options()
def bundle(options: Options, job: str | None, *, path: str | None) -> None:
    """Pack everything needed to debug a job into one tar.gz, without secrets.

    Contains its objects and events, logs and metrics of its pods, the state of the cluster around it, and the findings
    of why. Values of variables that look like secrets are removed, and Secrets are never read. Check the archive before
    you share it.
    """
    from kubectl_ddp.why.support_bundle import files, write  # noqa: PLC0415 - not needed for help and completion

    if path == "-" and sys.stdout.isatty():
        raise UsageError("An archive is nothing for a terminal.", hint="Name a --file, or send it somewhere with '>'.")
    backend, name = target(options, job)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    folder = f"{name}-{stamp}"
    archive = io.BytesIO()
    size = write(archive, folder, files(backend, name))
    if path == "-":
        raw(sys.stdout).buffer.write(archive.getvalue())
        return
    out = Path(path or f"{folder}.tar.gz")
    try:
        # Readable only by its owner, because the removal of secrets is a heuristic.
        with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            file.write(archive.getvalue())
    except OSError as error:
        raise DdpError(f"'{out}' cannot be written: {error.strerror}.", hint="Name another --file.") from error
    click.echo(out)
    packed = len(archive.getvalue())
    options.print_message(f"{packed >> 10} KiB packed, {size >> 10} KiB unpacked. Look through it before you share it.")
