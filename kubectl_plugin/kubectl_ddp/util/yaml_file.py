"""Reader of YAML files: those of this package, and the user's."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
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
