"""Command ``kubectl ddp completion``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options

SCRIPTS: Final = Path(__file__).parent / "shells"
SHELLS: Final = ("bash", "zsh", "fish")


HELP: Final = """Print the script that completes 'kubectl-ddp' in a shell.

\b
bash:  source <(kubectl-ddp completion bash)
zsh:   source <(kubectl-ddp completion zsh)
fish:  kubectl-ddp completion fish | source

kubectl's own completion completes 'kubectl ddp'. It needs kubectl_complete-ddp on PATH.
"""


@click.command(cls=HelpfulCommand, help=HELP)
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@shared_options()
def completion(options: Options, shell: str) -> None:
    """Print the script that completes 'kubectl-ddp' in a shell."""
    del options
    click.echo((SCRIPTS / f"kubectl-ddp.{shell}").read_text(encoding="utf-8"), nl=False)
