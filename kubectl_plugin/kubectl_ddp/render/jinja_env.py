"""Jinja2 environment that keeps user text as text: every value enters a template through ``quoted`` or ``block``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2
import yaml

from kubectl_ddp.kube.objects import Object
from kubectl_ddp.util.yaml_text import LOADER

TEMPLATES: Final = Path(__file__).parent / "templates"


def to_flow_yaml(value: Any) -> str:
    """Return a value in YAML's flow style on one line, unambiguous for every YAML reader.

    JSON does not suffice: YAML folds some line ends that JSON leaves bare, and reads surrogate pairs as two characters.

    >>> to_flow_yaml('yes: [1]'), to_flow_yaml({"a": [1, True, None]})
    ('"yes: [1]"', '{"a": [1, true, null]}')
    """
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case int():
            return str(int(value))
        case str():
            return f'"{"".join(map(_escaped, value))}"'
        case Mapping():
            return "{" + ", ".join(f"{to_flow_yaml(key)}: {to_flow_yaml(item)}" for key, item in value.items()) + "}"
        case list() | tuple():
            return "[" + ", ".join(map(to_flow_yaml, value)) + "]"
    raise TypeError(f"{type(value).__name__} has no place in a template")


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if " " <= letter <= "~":
        return letter
    return f"\\u{ord(letter):04x}" if ord(letter) < 0x10000 else f"\\U{ord(letter):08x}"


def block(value: Mapping[str, Any] | list[Any]) -> str:
    """Return a mapping or list as lines, one entry each, to be indented in the template."""
    if isinstance(value, Mapping):
        return "\n".join(f"{to_flow_yaml(key)}: {to_flow_yaml(item)}" for key, item in value.items())
    return "\n".join(f"- {to_flow_yaml(item)}" for item in value)


@functools.cache
def environment() -> jinja2.Environment:
    """Return the environment; an undefined name in a template is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - YAML, not HTML; `quoted` is what escapes
        keep_trailing_newline=True,
    )
    made.filters |= {"quoted": to_flow_yaml, "block": block}
    return made


def fill(template: str, view: Mapping[str, Any]) -> Object:
    """Return the object that a template renders from ``view``."""
    loaded = yaml.load(environment().get_template(template).render(view), Loader=LOADER)  # noqa: S506 - a safe one
    if not isinstance(loaded, dict):
        raise TypeError(f"template {template} makes no object")
    return loaded
