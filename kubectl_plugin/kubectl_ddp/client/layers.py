"""Layers of a job's values: objects, keyword arguments, the user's defaults and the namespace's presets."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kubectl_ddp.backends.select import Where, cluster_of, is_local
from kubectl_ddp.errors import UsageError, suggest_known
from kubectl_ddp.kube import job_kinds
from kubectl_ddp.spec.external_values import IMAGE_VARIABLE, SharedPresets, defaults_of
from kubectl_ddp.spec.fields import FILE_KEYS, JOB_FILES, PROGRAM_KEYS
from kubectl_ddp.spec.job_file import read
from kubectl_ddp.spec.job_key import Given, Layer, Origin, OriginKind, to_kebab_case
from kubectl_ddp.spec.resolve import DEFAULT, DefaultingContext, Resolved, resolve
from kubectl_ddp.spec.serialization import HEADER
from kubectl_ddp.version import default_image

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
    if values.get("kind") == job_kinds.KIND:
        return layer_of_object(values)
    for key, wanted in HEADER.items():
        if values.get(key, wanted) != wanted:
            raise UsageError(f"{key} is '{values[key]}', and a job has '{wanted}'.", hint="Leave it out.")
    return _layer({key: value for key, value in values.items() if key not in HEADER}, OriginKind.FILE, "the job")


def layer_of_object(job: Mapping[str, Any]) -> Layer:
    """Return the values of a DDPJob. Raises UsageError."""
    metadata = {key: value for key, value in (job.get("metadata") or {}).items() if key in job_kinds.METADATA}
    keys = {key: value for key, value in (job.get("spec") or {}).items() if key not in job_kinds.CONTROLS}
    return _layer({**metadata, **keys}, OriginKind.FILE, "spec")


def layer_from_kwargs(keywords: Mapping[str, Any]) -> Layer:
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


LETTERS: Final = "bcdfghjklmnpqrstvwxz2456789"
"""Kubernetes' alphabet for random suffixes. It has no vowels, so that no words result."""


def resolve_job(
    layers: Sequence[Layer], where: Where, *, name_suffix: str = "", under: Layer | None = None
) -> Resolved:
    """Return the job that layers describe. Raises UsageError or NotFound.

    Args:
        layers: Values of the job, weakest first.
        where: Place of the job, whose namespace may share presets.
        name_suffix: Suffix of a name that is generated from the program.
        under: Values of another job, to use instead of the user's defaults.
    """
    weakest = under if under is not None else defaults_of(os.environ)
    return resolve([weakest, *layers], _defaulting_context(name_suffix, where))


def random_suffix() -> str:
    """Return a random suffix for the name of a job."""
    return "".join(secrets.choice(LETTERS) for _ in range(5))


def _defaulting_context(name_suffix: str, where: Where, environ: Mapping[str, str] = os.environ) -> DefaultingContext:
    image = environ.get(IMAGE_VARIABLE)
    return DefaultingContext(
        image=image or default_image(),
        image_origin=Origin(OriginKind.ENVIRONMENT, f"${IMAGE_VARIABLE}") if image else DEFAULT,
        name_suffix=name_suffix,
        shared=lambda namespace: shared_by(where, namespace),
    )


def shared_by(where: Where, namespace: str | None = None) -> SharedPresets:
    """Return the presets of the namespace; empty on this machine. Raises DdpError if the cluster cannot be read."""
    at = dataclasses.replace(where.where, namespace=namespace or where.namespace)
    return SharedPresets() if is_local(at) else cluster_of(at).shared_presets()
