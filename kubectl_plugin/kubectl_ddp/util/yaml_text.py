"""YAML files of this package and of the user, and objects as YAML and JSON that kubectl parses without changes."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, ten times as fast, if PyYAML was built with it."""
MOST_NODES: Final = 20_000
"""Largest number of values in a nested object, aliases counted each time."""


def read_yaml(path: Path) -> Any:
    """Return the document of a file. Raises OSError and yaml.YAMLError."""
    return parse_yaml(path.read_bytes())


def parse_yaml(content: bytes) -> Any:
    """Return the document. Raises yaml.YAMLError."""
    return yaml.load(content, Loader=LOADER)  # noqa: S506 - both are safe loaders


def plain_value(node: yaml.Node, count: Iterator[int] | None = None) -> Any:
    """Return the value of a node with the types of YAML 1.2: only integers, true, false and null are not text.

    Raises:
        yaml.MarkedYAMLError: If a key is not a text, or is repeated, or aliases make the value too large.

    >>> plain_value(yaml.compose("{a: 1, b: no, c: 0.5, d: '1', e: null, f: [true]}"))
    {'a': 1, 'b': 'no', 'c': '0.5', 'd': '1', 'e': None, 'f': [True]}
    """
    count = count or itertools.count()
    if next(count) > MOST_NODES:
        raise yaml.MarkedYAMLError(problem="it is too large", problem_mark=node.start_mark)
    if isinstance(node, yaml.SequenceNode):
        return [plain_value(item, count) for item in node.value]
    if isinstance(node, yaml.MappingNode):
        found: dict[str, Any] = {}
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.value in found:
                problem = f"'{key.value}' is given twice" if isinstance(key, yaml.ScalarNode) else "a key must be text"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            found[key.value] = plain_value(value, count)
        return found
    return _plain_scalar(node)


def _plain_scalar(node: yaml.Node) -> str | int | bool | None:
    text: str = node.value
    match node.tag.rpartition(":")[2]:
        case "null":
            return None
        case "bool" if text.lower() in {"true", "false"}:
            return text.lower() == "true"
        case "int" if re.fullmatch(r"-?(0|[1-9]\d{0,18})", text):
            return int(text)
    return text


PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""Words that some YAML reader parses as a boolean or null."""


class ManifestDumper(yaml.SafeDumper):
    """Dumper that leaves a string unquoted only if every version of YAML reads it as a string.

    PyYAML follows YAML 1.1 strictly and writes ``1e3`` unquoted, which kubectl's parser reads as a number.
    """

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def represent_str(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Represent a string, quoted unless it is a plain word."""
    bare = PLAIN.fullmatch(text) is not None and text.lower() not in WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if bare else '"')


def _list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
    """Represent a list; numbers are written on one line, since lists of exit codes are long."""
    is_numbers = bool(items) and all(isinstance(item, int) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=is_numbers)


ManifestDumper.add_representer(str, represent_str)
ManifestDumper.add_representer(list, _list)


def to_yaml(objects: Sequence[dict[str, Any]]) -> str:
    """Return YAML documents for ``kubectl apply -f -``."""
    return "---\n".join(yaml.dump(item, Dumper=ManifestDumper, sort_keys=False, width=2**20) for item in objects)


def to_json(objects: Sequence[dict[str, Any]]) -> str:
    """Return one Kubernetes List for ``kubectl apply -f -`` and for programs."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=2) + "\n"
