"""Commands that describe job keys and sets of their values: ``kubectl ddp explain`` and ``presets``."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from kubectl_ddp.cli.internal.command import GroupedHelpCommand, Options, shared_options
from kubectl_ddp.cli.internal.output import print_output
from kubectl_ddp.errors import DdpError, NotFound, UsageError, suggest_close_match, suggest_known
from kubectl_ddp.util.text_table import Style, Table

if TYPE_CHECKING:
    from kubectl_ddp.spec.external_values import SharedPresets
    from kubectl_ddp.spec.fields import Preset
    from kubectl_ddp.spec.job_key import Field


@click.command(cls=GroupedHelpCommand)
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
    return Table.from_text(("KEY", "TYPE", "DESCRIPTION"), rows).render(Style(), has_header=False)


def _one_key(field: Field) -> Iterator[str]:
    from kubectl_ddp.spec.fields import default_of, type_of  # noqa: PLC0415 - as above

    yield f"{field.name}: {field.help}\n"
    yield f"Type:     {type_of(field)}  {field.metavar}".rstrip()
    yield f"Default:  {default_of(field) or 'none'}"
    yield f"Flag:     {field.flag}" if field.is_flag else f"Argument: {field.flag}"
    yield f"Example:  {field.name}: {field.example}"


PRESETS: Final = "preset"
FABRIC: Final = "fabric"
SHARED: Final = "shared"
INDENT: Final = "    "
TIMEOUT_SECONDS: Final = 5.0
"""Timeout of reading shared presets from the cluster, in seconds. The built-in ones are listed anyway."""


@click.command(cls=GroupedHelpCommand)
@click.argument("preset", required=False, metavar="[NAME]")
@shared_options("json")
def presets(options: Options, preset: str | None) -> None:
    """List presets and fabrics; with NAME, every value of one, its reason and its source.

    A preset holds values that suit a kind of machine, a fabric those of the network between GPUs. --preset and --fabric
    choose them, and flags and job files win over both. Presets of the type 'shared' are those of the namespace.
    """
    from kubectl_ddp.status.job_tables import API_VERSION  # noqa: PLC0415 - not needed for help and completion

    if preset is not None:
        document = _find_profile(preset, options)
        shown: Sequence[str] = list(_lines(document))
    else:
        every = [*_all(), *_shared(options)]
        document = {"items": [{key: item[key] for key in ("name", "type", "summary", "source")} for item in every]}
        rows = [(item["name"], item["type"], item["summary"]) for item in document["items"]]
        shown = [Table.from_text(("NAME", "TYPE", "SUMMARY"), rows).render(Style())]
    if options.output == "json":
        kind = "Preset" if preset is not None else "PresetList"
        print_output({"apiVersion": API_VERSION, "kind": kind, **document}, options.output)
    else:
        click.echo("\n".join(shown))


def _find_profile(name: str, options: Options) -> dict[str, Any]:
    """Return one preset or fabric as data. Raises NotFound, and UsageError for an invalid shared preset."""
    found = {profile["name"]: profile for profile in _all()}
    if name not in found:
        there = _load_shared(options)
        if name in there.texts:
            return _as_data(there.read(name), SHARED, there.place)
        found |= {profile: {} for profile in there.texts}
        raise NotFound(f"There is no preset or fabric '{name}'.", hint=suggest_known(name, found))
    return found[name]


def _all() -> Iterator[dict[str, Any]]:
    from kubectl_ddp.fabrics.catalog import SET, fabrics  # noqa: PLC0415 - not needed for help and completion
    from kubectl_ddp.spec.fields import PRESETS as ALL  # noqa: PLC0415

    yield from (_as_data(preset, PRESETS, "") for preset in ALL.values())
    for fabric in fabrics().values():
        values = [
            {
                "key": entry.key,
                "value": entry.value,
                "reason": entry.reason,
                "source": entry.source,
                "set": entry.emission in SET,
                "emission": str(entry.emission),
                "since": entry.since,
                "before": entry.before,
                "machines": list(entry.machines),
            }
            for entry in fabric.entries
        ]
        yield {
            "name": fabric.name,
            "type": FABRIC,
            "summary": fabric.summary,
            "source": fabric.source,
            "values": values,
            "needs": [{"sentence": need.message, "source": need.source} for need in fabric.needs],
            "refuses": [
                {"name": refusal.name, "value": refusal.value, "reason": refusal.reason, "source": refusal.source}
                for refusal in fabric.refusals
            ],
        }


def _as_data(preset: Preset, kind: str, source: str) -> dict[str, Any]:
    values = [
        {"key": key, "value": setting.value, "reason": setting.reason, "source": setting.source, "set": True}
        for key, setting in preset.settings.items()
    ]
    return {"name": preset.name, "type": kind, "summary": preset.summary, "source": source, "values": values}


def _load_shared(options: Options) -> SharedPresets:
    """Return the presets that the namespace shares. If the cluster does not answer in time, print a message and return
    none.
    """
    from kubectl_ddp.cli.internal.candidates import within  # noqa: PLC0415 - as above
    from kubectl_ddp.client.layers import shared_by  # noqa: PLC0415
    from kubectl_ddp.spec.external_values import SharedPresets  # noqa: PLC0415

    def fetch_shared() -> SharedPresets | DdpError:
        try:
            return shared_by(options)
        except DdpError as error:
            return error

    silence: SharedPresets | DdpError = DdpError("the API server does not answer")
    found = within(TIMEOUT_SECONDS, fetch_shared, silence)
    if isinstance(found, DdpError):
        options.print_message(f"Presets that the namespace shares are not known: {found.message.rstrip('.')}.")
        return SharedPresets()
    return found


def _shared(options: Options) -> Iterator[dict[str, Any]]:
    there = _load_shared(options)
    for name in there.texts:
        try:
            yield _as_data(there.read(name), SHARED, there.place)
        except UsageError as error:
            yield {"name": name, "type": SHARED, "summary": error.message, "source": there.place, "values": []}


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    yield f"{document['name']} ({document['type']}): {document['summary']}"
    yield from _values("Sets:", [value for value in document["values"] if value["set"]])
    if document["type"] != FABRIC:
        return
    yield from _values(
        "Leaves to the site and to the pod:", [value for value in document["values"] if not value["set"]]
    )
    yield from _section_lines("Needs:", [(need["sentence"], need["source"]) for need in document["needs"]])
    against = [
        (
            f"{refusal['name']}{'' if refusal['value'] == '*' else '=' + refusal['value']}: {refusal['reason']}",
            refusal["source"],
        )
        for refusal in document["refuses"]
    ]
    yield from _section_lines("Warns of:", against)


def _values(title: str, values: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    rows = [(f"{value['key']}: {value['value']}{_bounds(value)}", value["reason"], value["source"]) for value in values]
    yield f"\n{title}" if rows else f"\n{title} nothing"
    for head, reason, source in rows:
        yield from (f"  {head}", *(f"{INDENT}{line}" for line in (reason, source) if line))


def _bounds(value: Mapping[str, Any]) -> str:
    words = [f"on {', '.join(value['machines'])}"] if value.get("machines") else []
    words += [f"NCCL {value['since']} and newer"] if value.get("since") else []
    words += [f"NCCL before {value['before']}"] if value.get("before") else []
    return f"   ({'; '.join(words)})" if words else ""


def _section_lines(title: str, rows: Sequence[tuple[str, str]]) -> Iterator[str]:
    if rows:
        yield f"\n{title}"
    for sentence, source in rows:
        yield from textwrap.wrap(sentence, 110, initial_indent="  ", subsequent_indent=INDENT)
        yield f"{INDENT}{source}"
