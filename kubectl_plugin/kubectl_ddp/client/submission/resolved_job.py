"""Resolution of a job from layers, with the user's own defaults, the environment, and presets of the namespace."""

from __future__ import annotations

import dataclasses
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Final

from kubectl_ddp.backends.select import Where, cluster_of, is_local
from kubectl_ddp.spec.external_values import IMAGE_VARIABLE, SharedPresets, defaults_of
from kubectl_ddp.spec.job_key import Layer, Origin, OriginKind
from kubectl_ddp.spec.resolve import DEFAULT, DefaultingContext, Resolved, resolve
from kubectl_ddp.version import default_image

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
    said = environ.get(IMAGE_VARIABLE)
    return DefaultingContext(
        image=said or default_image(),
        image_origin=Origin(OriginKind.ENVIRONMENT, f"${IMAGE_VARIABLE}") if said else DEFAULT,
        name_suffix=name_suffix,
        shared=lambda namespace: shared_by(where, namespace),
    )


def shared_by(where: Where, namespace: str | None = None) -> SharedPresets:
    """Return the presets of the namespace; empty on this machine. Raises DdpError if the cluster cannot be read."""
    at = dataclasses.replace(where.where, namespace=namespace or where.namespace)
    return SharedPresets() if is_local(at) else cluster_of(at).shared_presets()
