"""Every value of a chart, each with where it shows: that a key has an effect is a row of a table.

A key is written as it would be set, with the index of a list's item: ``namespaces.0.keep``. :func:`keys_of` names every
key that the schema knows, with ``[]`` for an item and ``*`` for any entry of a map, so that a test can find
those without a row.
"""

from __future__ import annotations

import copy
import functools
import itertools
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.support.helm import Helm, Object
from tools.docs.values_table import resolve_reference

ABSENT: Final = "<nothing>"
"""Stands for an object, or a field of one, that is not there."""


@dataclass(frozen=True)
class Row:
    """One key, one value, and what it changes."""

    key: str
    value: Any
    where: str
    """An object and a field of it: ``Job/ddp-helm-test spec.backoffLimit``; the object alone where it comes or goes."""
    becomes: Any
    """Content of that field with the value, and not without it."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Values that the key means nothing without."""
    serves: Sequence[str] = ()
    """API versions that the cluster serves."""

    def __str__(self) -> str:
        return self.key

    @property
    def values(self) -> dict[str, Any]:
        return put(self.given, self.key, self.value)


def rows_of(
    prefix: str,
    where: str,
    *changes: tuple[Any, ...],
    given: Mapping[str, Any] | None = None,
    serves: Sequence[str] = (),
) -> tuple[Row, ...]:
    """Rows of keys below a prefix whose effects are in one object or a part of it.

    Args:
        prefix: First part of each key.
        where: First part of each place.
        changes: Rest of the key, value, rest of the place, and what is there then, where that is not the value.
        given: Values that the keys mean nothing without.
        serves: What the cluster serves.
    """
    return tuple(
        Row(f"{prefix}{key}", value, f"{where}{place}", becomes[0] if becomes else value, given or {}, serves)
        for key, value, place, *becomes in changes
    )


def put(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy of ``values`` with one key set. Backslashes keep dots together, as with ``--set``."""
    made: Any = copy.deepcopy(dict(values))
    node, names = made, parts(key)
    for name, following in itertools.pairwise(names):
        empty: Any = [] if following.isdigit() else {}
        if name.isdigit():
            node.extend({} for _ in range(int(name) + 1 - len(node)))
            node = node[int(name)]
        else:
            node = node.setdefault(name, empty)
    if names[-1].isdigit():
        node.append(value)
    else:
        node[names[-1]] = value
    return dict(made)


def parts(key: str) -> list[str]:
    """The names of a dotted key."""
    return [name.replace("\\.", ".") for name in re.split(r"(?<!\\)\.", key)]


def shown(objects: Sequence[Object], where: str) -> Any:
    """Content of a field of an object; the object itself where no field is named, or :data:`ABSENT`."""
    name, _, path = where.partition(" ")
    found: Any = next((item for item in objects if f"{item['kind']}/{item['metadata']['name']}" == name), ABSENT)
    if found == ABSENT or not path:
        return ABSENT if found == ABSENT else "there"
    for part in parts(path):
        try:
            found = found[int(part) if isinstance(found, list) else part]
        except (KeyError, IndexError):
            return ABSENT
    return found


def keys_of(schema: Mapping[str, Any]) -> set[str]:
    """Every key that the schema knows and that holds no other key with a name of ours."""
    return set(_leaves(schema, schema, ""))


def _leaves(schema: Mapping[str, Any], node: Mapping[str, Any], path: str) -> Iterator[str]:
    node = resolve_reference(schema, node)
    below = [
        *((name, item) for name, item in node.get("properties", {}).items()),
        *([("[]", node["items"])] if _has_keys(schema, node.get("items")) else []),
        *([("*", node["additionalProperties"])] if _has_keys(schema, node.get("additionalProperties")) else []),
    ]
    if not below:
        yield path.removeprefix(".").replace(".[]", "[]")
    for name, item in below:
        yield from _leaves(schema, item, f"{path}.{name}")


def _has_keys(schema: Mapping[str, Any], node: Any) -> bool:
    """Return whether the content of an item or an entry has keys."""
    if not isinstance(node, dict):
        return False
    found = resolve_reference(schema, node)
    return "properties" in found or _has_keys(schema, found.get("items"))


def key_in_schema(schema: Mapping[str, Any], key: str) -> str:
    """The leaf of the schema that a key is, as :func:`keys_of` names it."""
    node, found = resolve_reference(schema, schema), ""
    for name in parts(key):
        if (
            not node.get("properties")
            and not _has_keys(schema, node.get("items"))
            and not _has_keys(schema, node.get("additionalProperties"))
        ):
            break  # an entry of a map of the user's own
        if name in node.get("properties", {}):
            node, found = resolve_reference(schema, node["properties"][name]), f"{found}.{name}"
        elif name.isdigit():
            node, found = resolve_reference(schema, node["items"]), f"{found}[]"
        else:
            node, found = resolve_reference(schema, node["additionalProperties"]), f"{found}.*"
    return found.removeprefix(".")


def check(helm: Helm, chart: Path, row: Row) -> None:
    """Assert that the key changes what its row says."""
    before = shown(_rendered(helm, chart, _frozen(row.given), tuple(row.serves)), row.where)
    after = shown(helm.template(chart, row.values, serves=row.serves), row.where)
    assert after == row.becomes
    assert before != after, f"{row.where} is {before!r} without {row.key}, too"


@functools.cache
def _rendered(helm: Helm, chart: Path, given: str, serves: tuple[str, ...]) -> list[Object]:
    """Objects of the chart, cached: many rows start from the same values."""
    return helm.template(chart, json.loads(given), serves=serves)


def _frozen(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
