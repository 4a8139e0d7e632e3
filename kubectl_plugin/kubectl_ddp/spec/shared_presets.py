"""Shared presets of a namespace, which an administrator keeps in a ConfigMap; the chart ``ddp-platform`` creates it.

One entry per preset, in YAML, each value with its reason::

    a100: |
      summary: Eight A100 per node.
      settings:
        gpus: {value: 8, reason: a node has eight, source: https://wiki.example.com/a100}
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from kubectl_ddp.errors import UsageError
from kubectl_ddp.spec.fields import FIELDS, IDENTITY_KEYS
from kubectl_ddp.spec.presets import Preset, Setting

CONFIG_MAP: Final = "ddp-presets"
"""Name of the ConfigMap in every namespace."""


@dataclass(frozen=True, slots=True)
class SharedPresets:
    """Shared presets of a namespace."""

    place: str = ""
    """Location for messages; empty if presets cannot be shared."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Preset texts in YAML by name; parsed on use, so that an invalid preset does not affect others."""

    def read(self, name: str) -> Preset:
        """Return one preset.

        Raises:
            KeyError: If it does not exist.
            UsageError: If it is invalid.
        """
        text = self.texts[name]
        try:
            return _parse_preset(name, _parse_yaml(text))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"The preset '{name}' of {self.place} cannot be read: {error}.",
                hint="Report it to the administrator; the chart ddp-platform writes presets from its value 'presets'.",
            ) from None


Shared: TypeAlias = Callable[[str | None], SharedPresets]
"""Function that loads the shared presets of a namespace (None for the default one). Raises DdpError."""


def nothing_shared(_namespace: str | None) -> SharedPresets:
    """Return no presets, for local jobs and without a cluster."""
    return SharedPresets()


def _parse_yaml(text: str) -> Mapping[str, Any]:
    import yaml  # noqa: PLC0415 - those without shared presets do without

    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(text, Loader=yaml.SafeLoader)):
            raise ValueError("it has YAML aliases, which a few words can make endless")
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is not valid YAML ({' '.join(str(error).split())})") from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(document, dict) or not isinstance(document.get("settings"), dict):
        raise TypeError("it has no 'settings'")
    return document


def _parse_preset(name: str, document: Mapping[str, Any]) -> Preset:
    settings = {str(key): _setting(str(key), value) for key, value in document["settings"].items()}
    return Preset(name, _text(document, "summary"), settings)


def _text(document: Mapping[str, Any], key: str) -> str:
    text = document.get(key, "")
    if not isinstance(text, str):
        raise TypeError(f"its '{key}' is no text")
    return text


def _setting(key: str, value: Any) -> Setting:
    head, dot, entry = key.partition(".")
    if head not in FIELDS or head in IDENTITY_KEYS or FIELDS[head].is_map != bool(dot and entry):
        raise ValueError(f"no preset sets '{key}'")
    if not isinstance(value, dict) or "value" not in value:
        raise TypeError(f"'{key}' has no 'value'")
    return Setting(value["value"], _text(value, "reason"), _text(value, "source"))
