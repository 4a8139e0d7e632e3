"""Command ``kubectl ddp explain``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import click

from kubectl_ddp.cli.internal.command import HelpfulCommand, Options, shared_options
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.errors import UsageError, suggest_close_match
from kubectl_ddp.util.text_table import Style, Table

if TYPE_CHECKING:
    from kubectl_ddp.spec.job_key import Field


@click.command(cls=HelpfulCommand)
@click.argument("key", required=False, metavar="[KEY]")
@shared_options("json")
def explain(options: Options, key: str | None) -> None:
    """Describe the keys of a job file; with KEY, its type, default, flag and an example.

    With -o json it prints the JSON schema of job files, or that of KEY.
    """
    from kubectl_ddp.spec.fields import FILE_KEYS, key_schema, schema_text  # noqa: PLC0415

    key = _without_kind(key)
    if key is not None and key not in FILE_KEYS:
        hint = suggest_close_match(key, FILE_KEYS) or "'kubectl ddp explain' lists the keys."
        raise UsageError(f"A job has no key '{key}'.", hint=hint)
    if options.output == "json" and key is not None:
        print_output(key_schema(FILE_KEYS[key]), options.output)
    elif options.output == "json":
        click.echo(schema_text(), nl=False)
    else:
        click.echo(_all_keys(FILE_KEYS.values()) if key is None else "\n".join(_one_key(FILE_KEYS[key])))


def _without_kind(key: str | None) -> str | None:
    """Return the key in ``job.nnodes`` or ``env.NAME``; None for the kind alone."""
    from kubectl_ddp.spec.fields import FILE_KEYS  # noqa: PLC0415 - not needed for help

    head, _, rest = (key or "").partition(".")
    if head.lower() in {"job", "jobs"}:
        return _without_kind(rest) if rest else None
    return head if head in FILE_KEYS and FILE_KEYS[head].is_map else key


def _all_keys(fields: Iterable[Field]) -> str:
    from kubectl_ddp.spec.fields import type_of  # noqa: PLC0415 - as above

    rows = [(field.name, type_of(field), field.help) for field in fields]
    return Table.of_texts(("KEY", "TYPE", "DESCRIPTION"), rows).render(Style(), has_header=False)


def _one_key(field: Field) -> Iterator[str]:
    from kubectl_ddp.spec.fields import default_of, type_of  # noqa: PLC0415 - as above

    yield f"{field.name}: {field.help}\n"
    yield f"Type:     {type_of(field)}  {field.metavar}".rstrip()
    yield f"Default:  {default_of(field) or 'none'}"
    yield f"Flag:     {field.flag}" if field.is_flag else f"Argument: {field.flag}"
    yield f"Example:  {field.name}: {field.example}"
