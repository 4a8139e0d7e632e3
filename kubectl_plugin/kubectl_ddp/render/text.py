"""Objects as text that kubectl reads as they were meant."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import yaml

from kubectl_ddp.backend import Object

PLAIN: Final = re.compile(r"[A-Za-z/][A-Za-z0-9_./-]*")
WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
"""What some reader of YAML takes for a boolean or nothing."""


class _Dumper(yaml.SafeDumper):
    """Writes a string bare only where every version of YAML reads a string.

    PyYAML follows YAML 1.1 to the letter and writes ``1e3`` bare; kubectl's reader makes a number of it.
    """

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless
        super().increase_indent(flow, False)

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    bare = PLAIN.fullmatch(text) is not None and text.lower() not in WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if bare else '"')


def _list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
    """A list of numbers takes one line: those of exit codes are long."""
    is_numbers = bool(items) and all(isinstance(item, int) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=is_numbers)


_Dumper.add_representer(str, _string)
_Dumper.add_representer(list, _list)


def to_yaml(objects: Sequence[Object]) -> str:
    """YAML documents, for ``kubectl apply -f -``."""
    return "---\n".join(yaml.dump(item, Dumper=_Dumper, sort_keys=False, width=2**20) for item in objects)


def to_json(objects: Sequence[Object]) -> str:
    """One Kubernetes List, for ``kubectl apply -f -`` and for programs."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=2) + "\n"
