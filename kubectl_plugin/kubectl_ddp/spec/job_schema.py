"""Job keys for readers and editors: the JSON schema of a job file, and the table of ``docs/job-file.md``.

``python -m kubectl_ddp.spec.job_schema docs`` writes both files.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.generated_tables import write_tables
from kubectl_ddp.spec.fields import DEFAULTS, FILE_KEYS, PROGRAM_KEYS
from kubectl_ddp.spec.job_key import Field, Group
from kubectl_ddp.spec.serialization import API_VERSION, KIND

SCHEMA_FILE: Final = "job.schema.json"
PAGE: Final = "job-file.md"


def job_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a job file. It accepts every valid file, and some invalid ones."""
    header = {"apiVersion": {"const": API_VERSION}, "kind": {"const": KIND}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Job file of kubectl ddp",
        "type": "object",
        "required": list(header),
        "properties": header | {key: _property(field) for key, field in FILE_KEYS.items()},
        "additionalProperties": False,
        "not": {"anyOf": [{"required": [a, b]} for a in PROGRAM_KEYS for b in PROGRAM_KEYS if a < b]},
    }


def schema_text() -> str:
    """Return the schema as the text of a file."""
    return json.dumps(job_schema(), indent=2) + "\n"


def _property(field: Field) -> dict[str, Any]:
    notation = "" if field.choices else f" Notation: {field.metavar}"
    default = {"default": DEFAULTS[field.name]} if field.name in DEFAULTS else {}
    return {"title": field.name, "description": f"{field.help}{notation}", **default, **field.schema}


def type_of(field: Field) -> str:
    """Return the type of a key's value for readers.

    >>> type_of(FILE_KEYS["gpus"]), type_of(FILE_KEYS["env"]), type_of(FILE_KEYS["mounts"])
    ('integer', 'map', 'list')
    """
    if field.choices:
        return "choice"
    kinds = field.schema["type"]
    kind = kinds if isinstance(kinds, str) else kinds[0]
    return {"object": "map", "array": "list", "boolean": "boolean", "integer": "integer"}.get(kind, "text")


def default_of(field: Field) -> str:
    """Return the default of a key for readers; empty without one.

    >>> default_of(FILE_KEYS["grace"]), default_of(FILE_KEYS["gpus"]), default_of(FILE_KEYS["ttl"])
    ('30s', 'from mig, or 0', '')
    """
    value = field.default
    known = "" if value is None else ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    if field.is_map or not field.otherwise:
        return "" if field.is_map else known
    return f"from {field.otherwise}{f', or {known}' if known else ''}"


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


if __name__ == "__main__":
    Path(sys.argv[1], SCHEMA_FILE).write_text(schema_text(), encoding="utf-8")
    write_tables(str(Path(sys.argv[1], PAGE)), lines())
