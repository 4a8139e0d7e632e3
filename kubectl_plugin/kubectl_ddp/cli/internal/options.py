"""Values of the flags that all commands share."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

import click

from kubectl_ddp.backends.select import Where


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Where):
    """Values of the shared flags."""

    output: str | None = None
    """Value of ``-o``, such as ``json`` or ``jsonpath={.name}``; ``None`` for text output."""
    no_headers: bool = False
    """True to print tables without their header line."""
    quiet: bool = False
    """True to print only data and errors."""
    no_color: bool = False
    verbose: bool = False
    """True to print the traceback of an internal error."""

    def print_message(self, text: str) -> None:
        """Print a message that is not data to stderr, unless ``--quiet`` is given."""
        if not self.quiet:
            click.echo(text, err=True)

    def use_color(self, environ: Mapping[str, str] = os.environ) -> bool:
        """Return whether stdout is a terminal and colors are not disabled (https://no-color.org)."""
        refused = self.no_color or environ.get("NO_COLOR") or environ.get("TERM") == "dumb"
        return not refused and sys.stdout.isatty()
