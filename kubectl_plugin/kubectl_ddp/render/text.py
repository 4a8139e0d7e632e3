"""Serialization of objects to YAML and JSON that kubectl parses without changes."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, Final

import yaml

from kubectl_ddp.kube.objects import Object

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


def represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    """Represent a string, quoted unless it is a plain word."""
    bare = PLAIN.fullmatch(text) is not None and text.lower() not in WORDS
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if bare else '"')


def _list(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.SequenceNode:
    """Represent a list; numbers are written on one line, since lists of exit codes are long."""
    is_numbers = bool(items) and all(isinstance(item, int) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=is_numbers)


ManifestDumper.add_representer(str, represent_text)
ManifestDumper.add_representer(list, _list)


def to_yaml(objects: Sequence[Object]) -> str:
    """Return YAML documents for ``kubectl apply -f -``."""
    return "---\n".join(yaml.dump(item, Dumper=ManifestDumper, sort_keys=False, width=2**20) for item in objects)


def to_json(objects: Sequence[Object]) -> str:
    """Return one Kubernetes List for ``kubectl apply -f -`` and for programs."""
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}, indent=2) + "\n"
