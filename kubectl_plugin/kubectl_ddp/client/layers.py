"""Values of a job as they are given in Python: a path, a mapping, or keyword arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

from kubectl_ddp.errors import UsageError, suggest_known
from kubectl_ddp.kube import ddpjob
from kubectl_ddp.spec.fields import FILE_KEYS, JOB_FILES, PROGRAM_KEYS
from kubectl_ddp.spec.job_file import read
from kubectl_ddp.spec.job_key import Given, Layer, Origin, OriginKind, to_kebab_case
from kubectl_ddp.spec.serialization import HEADER

_KEY_OF_KEYWORD: Final[Mapping[str, str]] = {to_kebab_case(key).replace("-", "_"): key for key in FILE_KEYS}
"""Keyword argument → key of a job file."""


def layer_of_path(path: str | os.PathLike[str]) -> Layer:
    """Return the values of a job file (``.yaml``, ``.yml``), or the script at the path. Raises UsageError, NotFound."""
    text = os.fspath(path)
    return (
        read(text) if text.lower().endswith(JOB_FILES) else {"script": Given(text, Origin(OriginKind.FLAG, "script"))}
    )


def layer_of_mapping(values: Mapping[str, Any]) -> Layer:
    """Return the values of a DDPJob, or of a mapping whose keys are those of a job. Raises UsageError."""
    if values.get("kind") == ddpjob.KIND:
        return layer_of_object(values)
    for key, wanted in HEADER.items():
        if values.get(key, wanted) != wanted:
            raise UsageError(f"{key} is '{values[key]}', and a job has '{wanted}'.", hint="Leave it out.")
    return _layer({key: value for key, value in values.items() if key not in HEADER}, OriginKind.FILE, "the job")


def layer_of_object(job: Mapping[str, Any]) -> Layer:
    """Return the values of a DDPJob. Raises UsageError."""
    metadata = {key: value for key, value in (job.get("metadata") or {}).items() if key in ddpjob.METADATA}
    keys = {key: value for key, value in (job.get("spec") or {}).items() if key not in ddpjob.CONTROLS}
    return _layer({**metadata, **keys}, OriginKind.FILE, "spec")


def layer_of_keywords(keywords: Mapping[str, Any]) -> Layer:
    """Return the values of keyword arguments: keys of a job file in snake_case. Raises UsageError."""
    for word in keywords:
        if word not in _KEY_OF_KEYWORD:
            raise UsageError(f"A job has no key '{word}'.", hint=suggest_known(word, _KEY_OF_KEYWORD))
    return _layer({_KEY_OF_KEYWORD[word]: value for word, value in keywords.items()}, OriginKind.FLAG, "")


def _layer(values: Mapping[str, Any], kind: OriginKind, place: str) -> Layer:
    if len(programs := [key for key in PROGRAM_KEYS if key in values]) > 1:
        raise UsageError(f"{' and '.join(programs)} exclude each other.", hint="Keep the one to run.")
    layer: dict[str, Given] = {}
    for key, value in values.items():
        origin = Origin(kind, place or key)
        if key not in FILE_KEYS:
            raise UsageError(f"A job has no key '{key}'.", hint=suggest_known(key, FILE_KEYS))
        if not FILE_KEYS[key].is_map:
            layer[key] = Given(os.fspath(value) if isinstance(value, os.PathLike) else value, origin)
        elif isinstance(value, Mapping):
            layer |= {f"{key}.{name}": Given(entry, origin) for name, entry in value.items()}
        else:
            raise UsageError(f"{key} is a mapping of names to values, not '{value}'.", hint=f"Write {key}={{...}}.")
    return layer
