"""Keys of a job file by name, collected from the fields of :class:`~kubectl_ddp.spec.model.JobSpec`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from kubectl_ddp.spec.job_key import KEYS, Completion, Field, Group, field_of, to_kebab_case
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.presets import PRESETS
from kubectl_ddp.values.parsers import Matching, Raw

FIELDS: Final[Mapping[str, Field]] = {
    each.name: dataclasses.replace(each, attribute=attribute.name)
    for attribute in dataclasses.fields(JobSpec)
    for each in attribute.metadata[KEYS]
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
