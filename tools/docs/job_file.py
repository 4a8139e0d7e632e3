"""Tables of ``docs/job-file.md``, from the keys of a job."""

from __future__ import annotations

from collections.abc import Iterator

from kubectl_ddp.spec.fields import FILE_KEYS, default_of, type_of
from kubectl_ddp.spec.job_key import Field, Group


def lines() -> Iterator[str]:
    """Yield the lines of the table of keys."""
    for group in Group:
        yield from ("", f"## {group}", "", "| Key | Type | Default | Description |", "|---|---|---|---|")
        for field in FILE_KEYS.values():
            if field.group is group:
                yield f"| `{field.name}` | {_cell(field)} | {default_of(field)} | {field.help} |"


def _cell(field: Field) -> str:
    notation = field.metavar.replace("|", "\\|")
    return f"{type_of(field)} `{notation}`" if notation else type_of(field)
