"""Command ``kubectl ddp version``."""

from __future__ import annotations

import json
import platform

import click

from kubectl_ddp import version as release
from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.status.json_output import API_VERSION


@click.command(cls=HelpfulCommand)
@shared_options("json")
def version(options: Options) -> None:
    """Print the version of this program."""
    if options.output == "json":
        document = {
            "apiVersion": API_VERSION,
            "kind": "Version",
            "version": release.version(),
            "python": platform.python_version(),
            "platform": f"{platform.system().lower()}/{platform.machine()}",
        }
        click.echo(json.dumps(document))
    else:
        click.echo(version_text())


def version_text() -> str:
    """Return the version as text."""
    return f"kubectl-ddp {release.version()} (Python {platform.python_version()})"
