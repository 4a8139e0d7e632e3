"""Table of values in a chart's README, from values.yaml and its schema.

A key is described by the comment above it that begins with ``# --``; what an item of a list holds is described in
values.schema.json, as is the type of a value. The table stands between two markers, and the rest of the
README is written by hand.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml

BEGIN: Final = "<!-- Values: written by `make docs`; a test keeps them in step. -->"
END: Final = "<!-- End of values. -->"
LONGEST: Final = 60
"""Characters of a default that are still read in a table."""

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ValueRow:
    """One value."""

    key: str
    """Dotted; what an item of a list holds as ``namespaces[].name``, of a map as ``presets.*.summary``."""
    default: str
    """JSON, if it is short; empty inside items."""
    may_be: str
    description: str

    def __str__(self) -> str:
        default = f"`{self.default}`" if self.default else ""
        cells = (f"`{self.key}`", default, self.may_be, self.description)
        return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |".replace("  ", " ")


def render_readme(chart: Path) -> str:
    """The README with the table as it should be. Raises ValueError where it has no place for one."""
    text = (chart / "README.md").read_text(encoding="utf-8")
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"{chart}/README.md has no place for the table: write the lines {BEGIN!r} and {END!r}.")
    lines = ["| Value | Default | May be | What it does |", "|---|---|---|---|", *map(str, value_rows(chart))]
    return "\n".join([head + begin, *lines, end + tail])


def value_rows(chart: Path) -> list[ValueRow]:
    """Every value of the chart, in the order of values.yaml."""
    schema = json.loads((chart / "values.schema.json").read_text(encoding="utf-8"))
    text = (chart / "values.yaml").read_text(encoding="utf-8")
    defaults = yaml.safe_load(text)
    found: list[ValueRow] = []
    for key, description in describe_keys(text).items():
        node = schema_at(schema, key)
        default = json.dumps(_at(defaults, key), ensure_ascii=False)
        default = default if len(default) <= LONGEST else "see values.yaml"
        found.append(ValueRow(key, default, _allowed_values(schema, node), description))
        found += _inside(schema, key, node)
    return found


def describe_keys(text: str) -> dict[str, str]:
    """Dotted key to what the comment above it says, for every key that has one which begins with two dashes."""
    found: dict[str, str] = {}
    words: list[str] = []
    path: list[tuple[int, str]] = []
    for line in text.splitlines():
        if begun := re.match(r"\s*# -- (.*)", line):
            words = [begun[1]]
        elif words and (more := re.match(r"\s*# (.*)", line)):
            words.append(more[1])
        elif key := re.match(r"(\s*)([A-Za-z][A-Za-z0-9]*):", line):
            path = [*((indent, name) for indent, name in path if indent < len(key[1])), (len(key[1]), key[2])]
            if words:
                found[".".join(name for _, name in path)] = " ".join(words)
            words = []
        else:
            words = []
    return found


def schema_at(schema: Schema, key: str) -> Schema:
    """Return the schema of a dotted key. Raises KeyError if it has none."""
    node: Schema = schema
    for name in key.split("."):
        node = resolve_reference(schema, resolve_reference(schema, node)["properties"][name])
    return node


def resolve_reference(schema: Schema, node: Schema) -> Schema:
    """Return the node that a reference leads to; keywords beside the reference override it."""
    if "$ref" in node:
        return resolve_reference(schema, schema["definitions"][node["$ref"].rpartition("/")[2]])
    if "allOf" in node and len(node["allOf"]) == 1:
        return {**resolve_reference(schema, node["allOf"][0]), **{name: node[name] for name in node if name != "allOf"}}
    return node


def _at(values: Any, key: str) -> Any:
    for name in key.split("."):
        values = values[name]
    return values


def _inside(schema: Schema, key: str, node: Schema) -> Iterator[ValueRow]:
    """Yield the rows of an item of a list or of a map."""
    for below, item in _items(schema, key, node):
        for name, field in item.get("properties", {}).items():
            inner = resolve_reference(schema, field)
            if "description" in field:
                yield ValueRow(f"{below}.{name}", "", _allowed_values(schema, inner), field["description"])
            yield from _inside(schema, f"{below}.{name}", inner)


def _items(schema: Schema, key: str, node: Schema) -> Iterator[tuple[str, Schema]]:
    if isinstance(node.get("items"), dict):
        yield f"{key}[]", resolve_reference(schema, node["items"])
    if isinstance(node.get("additionalProperties"), dict):
        yield f"{key}.*", resolve_reference(schema, node["additionalProperties"])
    elif "[]" in key or "*" in key:
        yield key, {"properties": node.get("properties", {})}


def _allowed_values(schema: Schema, node: Schema) -> str:
    """Describe the allowed values."""
    if "enum" in node:
        return ", ".join(f"`{json.dumps(value).strip(chr(34))}`" for value in node["enum"])
    kinds = node.get("type", "object")
    words = [_kind(schema, kind, node) for kind in ([kinds] if isinstance(kinds, str) else kinds)]
    return " or ".join(words)


def _kind(schema: Schema, kind: str, node: Schema) -> str:
    match kind:
        case "boolean":
            return "`true`, `false`"
        case "integer" if "maximum" in node:
            return f"{node['minimum']} to {node['maximum']}"
        case "array" if isinstance(node.get("items"), dict):
            of = resolve_reference(schema, node["items"]).get("type", "object")
            return f"list of {'maps' if of == 'object' else 'texts'}"
        case _:
            return {"string": "text", "object": "map", "array": "list", "integer": "whole number"}.get(kind, kind)
