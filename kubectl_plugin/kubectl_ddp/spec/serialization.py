"""Job as JSON: a flat document, which is the annotation ``ddp.dev/spec`` of a root object, or a DDPJob."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from ddp_trainer.common.constants import GROUP
from kubectl_ddp.errors import UsageError
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.kube.objects import Object
from kubectl_ddp.spec.fields import FIELDS, PROGRAM_KEYS
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.rules import checked
from kubectl_ddp.values.parsers import Raw
from kubectl_ddp.values.program import Command, Module, Script
from kubectl_ddp.values.quantity import BadValue

HEADER: Final = {"apiVersion": f"{GROUP}/v1", "kind": "Job"}
"""Header of the flat document, and of job files in the form before DDPJob."""


def make_program(key: str, value: Any) -> Script | Module | Command:
    """Return the program for one of the three program keys."""
    match key:
        case "script":
            return Script(value)
        case "module":
            return Module(value)
    return Command(value)


def spec_to_dict(spec: JobSpec) -> dict[str, Raw]:
    """Return ``spec`` as JSON values; as a job file, they describe the same job."""
    document: dict[str, Raw] = {**HEADER}
    for key, field in FIELDS.items():
        value = _program_value(spec, key) if key in PROGRAM_KEYS else _plain(getattr(spec, field.attribute))
        if value is not None and value not in ([], {}):
            document[key] = value
    return document


def to_ddpjob(spec: JobSpec) -> Object:
    """Return ``spec`` as a DDPJob. Its namespace is that of the request which creates it."""
    elsewhere = (*HEADER, *job_kinds.METADATA)
    keys = {key: value for key, value in spec_to_dict(spec).items() if key not in elsewhere}
    return {**job_kinds.HEADER, "metadata": {"name": spec.name}, "spec": keys}


def spec_from_dict(document: Mapping[str, Raw]) -> JobSpec:
    """Parse the output of :func:`spec_to_dict`. Raises UsageError."""
    attributes: dict[str, Any] = {}
    for key, raw in document.items():
        if key in HEADER:
            continue
        if key not in FIELDS:
            raise UsageError(f"A job has no key '{key}'.")
        try:
            value = FIELDS[key].parse(raw)
        except BadValue as error:
            raise UsageError(f"{key}: {error.message}.", hint=error.hint) from None
        attributes[FIELDS[key].attribute] = make_program(key, value) if key in PROGRAM_KEYS else value
    return checked(JobSpec(**attributes))


def digest(spec: JobSpec, code: str = "") -> str:
    """Return the SHA-256 of everything that affects the job's results: ``spec`` without its name, and the script."""
    document = {key: value for key, value in spec_to_dict(spec).items() if key != "name"}
    if code:
        document["code"] = hashlib.sha256(code.encode()).hexdigest()
    return hashlib.sha256(compact(document).encode()).hexdigest()


def compact(document: Mapping[str, Raw]) -> str:
    """Return canonical JSON on one line, byte for byte the same as Go's, since a chart computes it too."""
    line = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return line.replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _program_value(spec: JobSpec, key: str) -> Raw:
    match spec.program:
        case Script(path):
            return path if key == "script" else None
        case Module(name):
            return name if key == "module" else None
        case Command(words):
            return list(words) if key == "command" else None


def _plain(value: Any) -> Raw:
    """Return a value as JSON: numbers and booleans unchanged, others in their text notation."""
    match value:
        case None | bool() | int():
            return value
        case tuple() | list():
            return [_plain(item) for item in value]
        case Mapping():
            return {key: _plain(item) for key, item in value.items()}
    return str(value)
