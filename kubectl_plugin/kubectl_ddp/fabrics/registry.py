"""Registry of all fabrics by name, read from ``profiles/*.yaml``, with lookup of combined names.

In a list of a profile, a word stands for an entry, need or refusal of ``shared.yaml``, or for several. A source is a
word of ``sources.yaml``, ``env`` for the paragraph of the variable in NCCL's guide, or a URL.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from ddp_trainer.common.lint.sources import env
from kubectl_ddp.fabrics.model import ConflictingVariable, EmitPolicy, Entry, Need, Profile
from kubectl_ddp.util.nearest import suggest_known

VENDORS: Final = ("plain", "aws", "google", "azure", "oracle", "neoclouds", "mnnvl")
"""Files of profiles, in the order of the documentation."""
AUTO: Final = "auto"
"""Name for automatic choice from the job's other settings."""
NONE: Final = "none"
"""Name for no fabric: nothing is added."""
JOINT: Final = "+"
"""Separator between the fabric within racks and the fabric between racks."""

Fields = dict[str, Any]


@functools.cache
def fabrics() -> Mapping[str, Profile]:
    """Return all fabrics by name."""
    return {each["name"]: _profile(**each) for vendor in VENDORS for each in _data(vendor)}


def profiles(name: str) -> tuple[Profile, ...]:
    """Return the profiles for a name such as ``ib`` or ``gb200-mnnvl+ib``; an empty tuple for ``none``.

    Raises:
        LookupError: If a part of the name is unknown, repeated, or cannot be combined with another.
    """
    if name == NONE:
        return ()
    found = [_named(part) for part in name.split(JOINT)]
    between = [profile.name for profile in found if not profile.is_beside]
    if len(between) > 1:
        raise LookupError(f"'{name}' names {' and '.join(between)}, and the nodes of a job have one of them")
    if len({profile.name for profile in found}) < len(found):
        raise LookupError(f"'{name}' names a fabric twice")
    return tuple(found)


def suggest_name(name: str) -> str:
    """Return a sentence that suggests valid names in place of an unknown one."""
    return suggest_known(name, [*fabrics(), AUTO, NONE])


def _named(name: str) -> Profile:
    if name not in fabrics():
        raise LookupError(f"'{name}' is not a fabric")
    return fabrics()[name]


@functools.cache
def _data(file: str) -> Any:
    from kubectl_ddp.util.yaml_file import read_yaml  # noqa: PLC0415 - most commands need no fabric

    return read_yaml(Path(__file__).parent / "profiles" / f"{file}.yaml")


def _profile(
    *,
    source: str,
    entries: Iterable[Any] = (),
    needs: Iterable[Any] = (),
    refusals: Iterable[Any] = (),
    devices: Iterable[str] = (),
    **rest: Any,
) -> Profile:
    return Profile(
        source=_source(source, ""),
        entries=tuple(entry for item in _flat(entries) for entry in _entries(**item)),
        needs=tuple(Need(**item | {"source": _source(item["source"], "")}) for item in _flat(needs)),
        refusals=tuple(refusal for item in _flat(refusals) for refusal in _refusals(**item)),
        devices=tuple(devices),
        **rest,
    )


def _flat(items: Iterable[Any]) -> Iterator[Fields]:
    """Yield the items of a list, with the items that its words stand for."""
    for item in items:
        named = _data("shared")[item] if isinstance(item, str) else item
        yield from _flat(named) if isinstance(named, list) else (named,)


def _entries(
    *,
    key: str = "",
    value: Any = "",
    values: Mapping[str, Any] | None = None,
    by_machine: Mapping[str, Any] | None = None,
    machines: Iterable[str] = (),
    source: str,
    emission: str = EmitPolicy.SYSTEM,
    **rest: Any,
) -> Iterator[Entry]:
    """Yield the entry of ``key``, one for each of ``values``, or one for each machine of ``by_machine``."""
    rows = [(name, each, tuple(machines)) for name, each in (values or {key: value}).items()]
    if by_machine:
        rows = [(key, each, (machine,)) for machine, each in by_machine.items()]
    for name, each, only in rows:
        yield Entry(
            key=name,
            value=_text(each),
            machines=only,
            source=_source(source, name.partition(".")[2]),
            emission=EmitPolicy(emission),
            **rest,
        )


def _refusals(*, name: str = "", names: Iterable[str] = (), source: str, **rest: Any) -> Iterator[ConflictingVariable]:
    for each in names or (name,):
        yield ConflictingVariable(name=each, source=_source(source, each), **rest)


def _text(value: Any) -> str:
    """Return a value as a job file has it: words with commas between them, objects as JSON."""
    if isinstance(value, list):
        is_words = all(isinstance(each, str) for each in value)
        return ",".join(value) if is_words else json.dumps(value, separators=(",", ":"))
    return str(value)


def _source(source: str, variable: str) -> str:
    if source == "env":
        return env(variable)
    return source if source.startswith("https://") else str(_data("sources")[source])
