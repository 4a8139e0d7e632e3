"""Commands about this program: ``kubectl ddp completion`` and ``version``."""

from __future__ import annotations

import json
import platform
from pathlib import Path
from typing import Final

import click

from kubectl_ddp import version as release
from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options

SCRIPTS: Final = Path(__file__).parent / "shells"
SHELLS: Final = ("bash", "zsh", "fish")


HELP: Final = """Print the script that completes 'kubectl-ddp' in a shell.

\b
bash:  source <(kubectl-ddp completion bash)
zsh:   source <(kubectl-ddp completion zsh)
fish:  kubectl-ddp completion fish | source

kubectl's own completion completes 'kubectl ddp'. It needs kubectl_complete-ddp on PATH.
"""


@click.command(cls=GroupedHelpCommand, help=HELP)
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@shared_options()
def completion(options: Options, shell: str) -> None:
    """Print the script that completes 'kubectl-ddp' in a shell."""
    del options
    click.echo((SCRIPTS / f"kubectl-ddp.{shell}").read_text(encoding="utf-8"), nl=False)


@click.command(cls=GroupedHelpCommand)
@shared_options("json")
def version(options: Options) -> None:
    """Print the version of this program."""
    if options.output == "json":
        from kubectl_ddp.status.job_tables import API_VERSION  # noqa: PLC0415 - not needed for text and completion

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
