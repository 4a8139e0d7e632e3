"""Output of documents and findings in the forms of ``-o``, and the display capabilities of stdout."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import click

from kubectl_ddp.cli.internal.command import CUSTOM_COLUMNS, JSONPATH, Options
from kubectl_ddp.errors import PreflightFailed
from kubectl_ddp.status.job_tables import API_VERSION
from kubectl_ddp.util.finding import Finding, finding_to_dict, findings_text, summarize_failures
from kubectl_ddp.util.text_table import Style


def is_document(output: str | None) -> bool:
    """Return whether a value of ``-o`` selects the document, or an expression on it, and neither text nor names.

    >>> [is_document(each) for each in (None, "wide", "name", "json", "jsonpath={.name}")]
    [False, False, False, True, True]
    """
    return output not in {None, "wide", "name"}


def print_output(document: dict[str, Any], output: str, *, has_header: bool = True) -> None:
    """Print a document in a form of ``-o``: ``json``, ``yaml``, ``jsonpath=`` or ``custom-columns=``.

    ``has_header`` is false to print custom columns without their header.
    """
    if output == "json":
        click.echo(json.dumps(document, indent=2))
    elif output.startswith(JSONPATH):
        from kubectl_ddp.util.jsonpath import parse_template  # noqa: PLC0415 - rarely needed

        click.echo(parse_template(output.removeprefix(JSONPATH)).render(document), nl=False)
    elif output.startswith(CUSTOM_COLUMNS):
        from kubectl_ddp.util.jsonpath import columns_table  # noqa: PLC0415 - rarely needed

        table = columns_table(document, output.removeprefix(CUSTOM_COLUMNS))
        if text := table.render(Style(), has_header=has_header):
            click.echo(text)
    else:
        from kubectl_ddp.util.yaml_text import to_yaml  # noqa: PLC0415 - imports YAML

        click.echo(to_yaml([document]), nl=False)


def style(options: Options) -> Style:
    """Return the display capabilities of stdout."""
    width = _width() if sys.stdout.isatty() else None
    return Style(color=options.use_color(), width=width, unicode=_supports_utf8(os.environ))


def _width() -> int:
    import shutil  # noqa: PLC0415 - 2 ms, and not in a pipe

    return shutil.get_terminal_size().columns


def _supports_utf8(environ: Mapping[str, str]) -> bool:
    """Return whether the locale supports characters beyond ASCII. The first variable that is set decides.

    >>> _supports_utf8({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}), _supports_utf8({"LANG": "C.utf8"}), _supports_utf8({})
    (False, True, True)
    """
    locale = next((text for name in ("LC_ALL", "LC_CTYPE", "LANG") if (text := environ.get(name))), "UTF-8")
    return "utf8" in locale.lower().replace("-", "")


def print_findings(options: Options, kind: str, found: Sequence[Finding], **more: Any) -> None:
    """Print the findings as text, or as a document of a kind with further fields."""
    if options.output is not None:
        findings = [finding_to_dict(finding) for finding in found]
        print_output({"apiVersion": API_VERSION, "kind": kind, **more, "findings": findings}, options.output)
    elif found:
        click.echo(findings_text(found, style(options)))


def fail_on_errors(name: str, found: Sequence[Finding], *, is_strict: bool) -> None:
    """Raise PreflightFailed if there are errors, and with ``is_strict`` warnings."""
    if failures := summarize_failures(found, is_strict=is_strict):
        raise PreflightFailed(f"{name} has {failures}.", hint="Apply the listed fixes.")
