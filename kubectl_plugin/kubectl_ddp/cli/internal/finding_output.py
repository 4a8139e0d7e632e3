"""Output of findings by the commands that check something, and the error that ends such a command."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from kubectl_ddp.cli.internal.command import Options
from kubectl_ddp.cli.internal.output import print_output, style
from kubectl_ddp.errors import PreflightFailed
from kubectl_ddp.status.json_output import API_VERSION
from kubectl_ddp.util.finding import Finding, finding_to_dict, findings_text, summarize_failures


def print_findings(options: Options, kind: str, found: Sequence[Finding], **more: Any) -> None:
    """Print the findings as text, or as a document of a kind with further fields."""
    if options.output is not None:
        findings = [finding_to_dict(each) for each in found]
        print_output({"apiVersion": API_VERSION, "kind": kind, **more, "findings": findings}, options.output)
    elif found:
        click.echo(findings_text(found, style(options)))


def fail_on_errors(name: str, found: Sequence[Finding], *, is_strict: bool) -> None:
    """Raise PreflightFailed if there are errors, and with ``is_strict`` warnings."""
    if failures := summarize_failures(found, is_strict=is_strict):
        raise PreflightFailed(f"{name} has {failures}.", hint="Apply the listed fixes.")
