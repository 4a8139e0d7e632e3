"""Keys of a job file by name, its JSON schema, and presets.

Keys are the fields of :class:`~kubectl_ddp.spec.model.JobSpec`. A preset is a set of values for a kind of machine, each
with a reason.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ddp_trainer.common import lint
from ddp_trainer.common.constants import Path
from kubectl_ddp.kube.job_kinds import HEADER, KUBECTLS, METADATA
from kubectl_ddp.spec.job_key import (
    KEYS,
    Completion,
    Field,
    Given,
    Group,
    Layer,
    Origin,
    OriginKind,
    field_of,
    to_kebab_case,
)
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.values.parsers import Matching, Raw


@dataclass(frozen=True, slots=True)
class Setting:
    """One value of a preset."""

    value: Raw
    reason: str
    source: str
    """Address of its documentation; empty if there is none."""


@dataclass(frozen=True, slots=True)
class Preset:
    """A named set of values."""

    name: str
    summary: str
    settings: Mapping[str, Setting]
    """Dotted key of the job file → setting."""

    def layer(self) -> Layer:
        """Return the preset's values as a source."""
        return {
            key: Given(setting.value, Origin(OriginKind.PRESET, self.name, setting.reason))
            for key, setting in self.settings.items()
        }


_FLIGHT_RECORDER: Final = f"{Path.RUN_DIR}/nccl_trace_rank_"
_OLDER: Final = "the same under the name that older torch reads"
_KUBERNETES: Final = "https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination"
_TOOLKIT: Final = "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/docker-specialized.html"

PRESETS: Final[Mapping[str, Preset]] = {
    preset.name: preset
    for preset in (
        Preset(
            "cpu-gloo",
            "Ranks on CPU cores, collectives by gloo.",
            {
                "grace": Setting(
                    "30s", "kubelet's own default; a step and a checkpoint on CPU take seconds", _KUBERNETES
                ),
                "env.NVIDIA_VISIBLE_DEVICES": Setting(
                    "void",
                    "an image built for CUDA sees every GPU of its machine, also those of other pods",
                    _TOOLKIT,
                ),
            },
        ),
        Preset(
            "gpu-nccl",
            "One rank per GPU, collectives by NCCL.",
            {
                "grace": Setting(
                    "120s", "time for a checkpoint of GPU memory and for the flight recorder's dump", _KUBERNETES
                ),
                "env.NCCL_DEBUG": Setting(
                    "WARN", "NCCL prints nothing about its failures otherwise", lint.env("NCCL_DEBUG")
                ),
                "env.TORCH_FR_BUFFER_SIZE": Setting(
                    "2000", "a hang leaves the last 2000 collectives of every rank as evidence", lint.FLIGHT_RECORDER
                ),
                "env.TORCH_NCCL_TRACE_BUFFER_SIZE": Setting("2000", _OLDER, lint.TORCH_NCCL),
                "env.TORCH_NCCL_DUMP_ON_TIMEOUT": Setting(
                    "1", "the flight recorder is written when a collective times out", lint.TORCH_NCCL
                ),
                "env.TORCH_FR_DUMP_TEMP_FILE": Setting(
                    _FLIGHT_RECORDER,
                    "the evidence outlives the container; torch's own place does not",
                    lint.FLIGHT_RECORDER,
                ),
                "env.TORCH_NCCL_DEBUG_INFO_TEMP_FILE": Setting(_FLIGHT_RECORDER, _OLDER, lint.TORCH_NCCL),
            },
        ),
        Preset("none", "Nothing beyond the defaults.", {}),
    )
}


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
