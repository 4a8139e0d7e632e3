"""``kubectl ddp completion``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import click

from kubectl_ddp.cli.options import Options, shared_options

SCRIPTS: Final = Path(__file__).parent / "shells"
SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", metavar="SHELL", type=click.Choice(SHELLS))
@shared_options()
def completion(options: Options, shell: str) -> None:
    r"""Print the script that completes 'kubectl-ddp' in a shell.

    \b
    bash:  source <(kubectl-ddp completion bash)
    zsh:   source <(kubectl-ddp completion zsh)
    fish:  kubectl-ddp completion fish | source

    'kubectl ddp' is completed by kubectl's own script, which finds kubectl_complete-ddp on PATH.
    """
    del options
    click.echo((SCRIPTS / f"kubectl-ddp.{shell}").read_text(encoding="utf-8"), nl=False)
