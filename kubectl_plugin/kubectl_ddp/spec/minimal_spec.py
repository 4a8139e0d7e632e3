"""Reduction of a complete job to the minimal settings that produce it again.

A submitted job contains all values, including derived ones. Reusing them unchanged would block later changes: memory is
derived from the number of GPUs, and must be derived again when that changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.defaults import DefaultingContext
from kubectl_ddp.spec.fields import FIELDS, PROGRAM_KEYS
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.resolve import resolve
from kubectl_ddp.spec.serialization import spec_to_dict
from kubectl_ddp.spec.value_source import Given, Kind, Layer, Origin

KEPT: Final = frozenset({"name", "namespace", "image", *PROGRAM_KEYS})
"""Keys that are always kept, since their defaults may change over time."""


def minimal_layer(spec: JobSpec, origin: Origin) -> Layer:
    """Return the minimal settings that resolve to ``spec``, with ``origin`` as the origin of each value."""
    surroundings = DefaultingContext(image=spec.image)
    said = dict(entries(spec, origin))
    for key in reversed(said):
        fewer = {other: given for other, given in said.items() if other != key}
        if key.partition(".")[0] not in KEPT and _resolves_to(fewer, spec, surroundings):
            said = fewer
    return said


def origin_from_job(job: str) -> Origin:
    """Return the origin of values copied from another job."""
    return Origin(Kind.FILE, f"job {job}")


def entries(spec: JobSpec, origin: Origin) -> Iterator[tuple[str, Given]]:
    """Yield every value of a job by dotted key."""
    for key, value in spec_to_dict(spec).items():
        if key not in FIELDS:
            continue
        if FIELDS[key].is_map and isinstance(value, Mapping):
            yield from ((f"{key}.{name}", Given(entry, origin)) for name, entry in value.items())
        else:
            yield key, Given(value, origin)


def _resolves_to(said: Layer, spec: JobSpec, surroundings: DefaultingContext) -> bool:
    try:
        return resolve([said], surroundings).spec == spec
    except UsageError:
        return False
