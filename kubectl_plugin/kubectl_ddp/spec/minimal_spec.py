"""What a person said of a job, found out from what it came to: the least that makes the same job again.

A job that is there keeps every value, those too that followed from others. Taken over as they are, they would stand in
the way of a change: memory was derived from the number of GPUs, and should be derived anew when that changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.derive import DefaultingContext
from kubectl_ddp.spec.fields import FIELDS, PROGRAM_KEYS
from kubectl_ddp.spec.model import JobSpec
from kubectl_ddp.spec.origin import Given, Kind, Layer, Origin
from kubectl_ddp.spec.resolve import resolve
from kubectl_ddp.spec.serialization import spec_to_dict

KEPT: Final = frozenset({"name", "namespace", "image", *PROGRAM_KEYS})
"""Keys that are said even where they would come out the same: another day they may not."""


def minimal_layer(spec: JobSpec, origin: Origin) -> Layer:
    """What to say to get ``spec`` again; ``origin`` is where each value then comes from."""
    surroundings = DefaultingContext(image=spec.image)
    said = dict(entries(spec, origin))
    for key in reversed(said):
        fewer = {other: given for other, given in said.items() if other != key}
        if key.partition(".")[0] not in KEPT and _resolves_to(fewer, spec, surroundings):
            said = fewer
    return said


def origin_from_job(job: str) -> Origin:
    """The origin of values that another job had."""
    return Origin(Kind.FILE, f"job {job}")


def entries(spec: JobSpec, origin: Origin) -> Iterator[tuple[str, Given]]:
    """Every value of a job, by dotted key."""
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
