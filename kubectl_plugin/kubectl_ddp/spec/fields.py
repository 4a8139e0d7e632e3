"""Keys of a job file by name, from the fields of :class:`~kubectl_ddp.spec.model.JobSpec`, and its JSON schema."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any, Final

from kubectl_ddp.kube.ddpjob import HEADER, KUBECTLS, METADATA
from kubectl_ddp.spec.job_key import KEYS, Completion, Field, Group, field_of, to_kebab_case
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.presets import PRESETS
from kubectl_ddp.values.parsers import Matching, Raw

FIELDS: Final[Mapping[str, Field]] = {
    key.name: dataclasses.replace(key, attribute=attribute.name)
    for attribute in dataclasses.fields(JobSpec)
    for key in attribute.metadata[KEYS]
}
"""All keys in the order of help, ``render --explain`` and JSON."""

PRESET: Final = "preset"
"""Key that names a preset with default values; not part of the job."""
FILE_KEYS: Final[Mapping[str, Field]] = {
    **FIELDS,
    PRESET: field_of(
        PRESET,
        Group.JOB,
        Matching(".+", "not a preset", "Name one."),
        "Preset of values that belong together.",
        "|".join(PRESETS),
        example="gpu-nccl",
        otherwise="gpus",
        completion=Completion.PRESETS,
    ),
}
"""All keys of a job file."""
PROGRAM_KEYS: Final = tuple(key for key, field in FIELDS.items() if field.attribute == "program")
JOB_FILES: Final = (".yaml", ".yml")
"""Suffixes of a job file; any other file is a script."""
IDENTITY_KEYS: Final = frozenset(key for key, field in FIELDS.items() if field.group in {Group.JOB, Group.PROGRAM})
"""Keys that identify a job, so they have no default and are not part of presets."""
DEFAULTS: Final[Mapping[str, Raw]] = {
    key: field.default for key, field in FIELDS.items() if field.default not in (None, [], {}) and not field.otherwise
}
"""Defaults that do not depend on other values."""


def flag_of(key: str) -> str:
    """Return the flag of a key.

    >>> flag_of("maxRestarts"), flag_of("env.NAME")
    ('--max-restarts', '--env NAME')
    """
    head, _, rest = key.partition(".")
    flag = FILE_KEYS[head].flag if head in FILE_KEYS else f"--{to_kebab_case(head)}"
    return f"{flag} {rest}".rstrip()


SCHEMA_FILE: Final = "job.schema.json"
"""Name of the file with the schema."""


def job_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of a job file. It accepts every valid file, and some invalid ones."""
    keys = {key: key_schema(field) for key, field in FILE_KEYS.items()}
    spec = {key: schema for key, schema in keys.items() if key not in METADATA}
    metadata = {key: keys[key] for key in METADATA} | {key: {"type": "object"} for key in KUBECTLS}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Job file of kubectl ddp",
        "type": "object",
        "required": list(HEADER),
        "properties": {
            **{key: {"const": value} for key, value in HEADER.items()},
            "metadata": {"type": "object", "properties": metadata, "additionalProperties": False},
            "spec": {
                "type": "object",
                "properties": spec,
                "additionalProperties": False,
                "not": {"anyOf": [{"required": [a, b]} for a in PROGRAM_KEYS for b in PROGRAM_KEYS if a < b]},
            },
        },
        "additionalProperties": False,
    }


def schema_text() -> str:
    """Return the schema as the text of a file."""
    return json.dumps(job_schema(), indent=2) + "\n"


def key_schema(field: Field) -> dict[str, Any]:
    """Return the schema of the value of one key."""
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
