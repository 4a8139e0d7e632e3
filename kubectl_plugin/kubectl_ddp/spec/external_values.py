"""Values from outside a job: the user's defaults, and the presets of a namespace.

The user's defaults are a YAML file of job keys, one per line, in the format of ``--set``. An administrator keeps the
shared presets of a namespace in a ConfigMap; the chart ``ddp-platform`` creates it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeAlias

from kubectl_ddp.errors import DdpError, UsageError, suggest_known
from kubectl_ddp.spec.fields import FIELDS, FILE_KEYS, IDENTITY_KEYS, PRESET, Preset, Setting
from kubectl_ddp.spec.job_key import Given, Layer, Origin, OriginKind
from kubectl_ddp.values.parsers import Raw, text
from kubectl_ddp.values.quantity import BadValue

KEYS: Final = tuple(key for key in FILE_KEYS if key not in IDENTITY_KEYS)
"""Job keys that may have a default."""

GRAFANA: Final = "grafana"
SETTINGS: Final = (GRAFANA,)
"""Keys of commands other than submit."""

IMAGE_VARIABLE: Final = "KUBECTL_DDP_IMAGE"


def config_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file, which may not exist (XDG base directory specification)."""
    directory = environ.get("XDG_CONFIG_HOME", "")
    home = Path(directory) if directory.startswith("/") else Path(environ.get("HOME", "~")).expanduser() / ".config"
    return home / "kubectl-ddp" / "config.yaml"


def defaults_of(environ: Mapping[str, str] = os.environ) -> Layer:
    """Return the defaults of the file; ``$KUBECTL_DDP_IMAGE`` takes precedence over its image. Raises UsageError."""
    layer = read(config_file(environ))
    overruled = {*SETTINGS, *(("image",) if environ.get(IMAGE_VARIABLE) else ())}
    return {key: given for key, given in layer.items() if key not in overruled}


def setting(key: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the value of a key in :data:`SETTINGS`; ``None`` if the file does not set it. Raises UsageError."""
    given = read(config_file(environ)).get(key)
    return None if given is None else str(given.raw)


def read(file: Path) -> Layer:
    """Parse a file of defaults: dotted key → value; empty if the file is missing. Raises UsageError."""
    lines = _lines(file)
    if not any(line.strip() and not line.lstrip().startswith("#") for line in lines):
        return {}
    import yaml  # noqa: PLC0415 - only if there are defaults

    try:
        root = yaml.compose("\n".join(lines), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        where = f" line {error.problem_mark.line + 1}" if error.problem_mark else ""
        raise UsageError(f"{file}{where} is not valid YAML: {error.problem}.", hint="Correct the line.") from None
    except (yaml.YAMLError, RecursionError):  # control characters, and thousands of brackets
        root = None
    if not isinstance(root, yaml.MappingNode):
        raise UsageError(f"{file} holds no keys.", hint="Write one 'KEY: VALUE' to a line.")
    layer: dict[str, Given] = {}
    for key, node in root.value:
        place = f"{file} line {key.start_mark.line + 1}"
        layer[_checked(str(key.value), place)] = Given(_value(node, place), Origin(OriginKind.CONFIG, place))
    return layer


def write(file: Path, key: str, value: str | None) -> None:
    """Set a key, or remove it if ``value`` is ``None``. Other lines and comments are kept. Raises DdpError."""
    _checked(key, f"config {key}")
    if value is not None:
        _parse(key, value)
    own_line = re.compile(rf"{re.escape(key)}\s*:")
    lines = [line for line in _lines(file) if not own_line.match(line)]
    text_of = None if value is None else f"{key}: {_quote_yaml(value)}"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        draft.write_text("".join(f"{line}\n" for line in [*lines, *([text_of] if text_of else [])]), encoding="utf-8")
        draft.replace(file)
    except OSError as error:
        raise DdpError(
            f"'{file}' cannot be written: {error.strerror}.", hint="XDG_CONFIG_HOME chooses another."
        ) from None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except (FileNotFoundError, NotADirectoryError, PermissionError):  # e.g. another user's home under sudo
        return []
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"'{file}' cannot be read: {error}.", hint="Mend it, or take it away.") from None


def _checked(key: str, place: str) -> str:
    """Return the key if it may have a default. Raises UsageError."""
    head, dot, _ = key.partition(".")
    if key in SETTINGS:
        return key
    if head not in KEYS:
        keys = (*KEYS, *SETTINGS)
        why = "identifies one job, so it cannot have a default" if head in FIELDS else "is not a key of a job"
        hint = suggest_known("" if head in FIELDS else head, keys)
        raise UsageError(f"{place}: '{key}' {why}.", hint=hint)
    if FILE_KEYS[head].is_map != bool(dot):
        raise UsageError(f"{place}: '{key}' takes no such value.", hint="Maps are set by entry, as in env.NAME.")
    return key


def _parse(key: str, value: str) -> None:
    head, _, entry = key.partition(".")
    if head == PRESET or key in SETTINGS:
        return
    field, raw = FIELDS[head], _list(value)
    try:
        field.parse({entry: raw} if field.is_map else raw)
    except BadValue as error:
        raise UsageError(f"{key}: {error.message}.", hint=error.hint) from None


def _list(value: str) -> Raw:
    if value.startswith("[") and value.endswith("]"):
        return [text(item.strip()) for item in value[1:-1].split(",") if item.strip()]
    return value


def _quote_yaml(value: str) -> str:
    """Quote a value so that YAML reads it as a string; lists stay lists."""
    raw = _list(value)
    if isinstance(raw, list):
        return "[" + ", ".join(_quote_yaml(str(item)) for item in raw) + "]"
    return (
        value
        if re.fullmatch(r"[A-Za-z0-9/][-A-Za-z0-9_./@]*(:[-A-Za-z0-9_./@]+)*", value)
        else f"'{value.replace(chr(39), chr(39) * 2)}'"
    )


def _value(node: object, place: str) -> Raw:
    import yaml  # noqa: PLC0415 - see above

    if isinstance(node, yaml.ScalarNode) and node.tag != "tag:yaml.org,2002:null":
        return str(node.value)
    if isinstance(node, yaml.SequenceNode) and all(isinstance(item, yaml.ScalarNode) for item in node.value):
        return [str(item.value) for item in node.value]
    raise UsageError(
        f"{place} has no plain value.", hint="Write 'KEY: VALUE', lists as [a, b], maps as 'env.NAME: VALUE'."
    )


CONFIG_MAP: Final = "ddp-presets"
"""Name of the ConfigMap in every namespace."""
MOST_CHARACTERS: Final = 1 << 16
"""Length of a preset: PyYAML reads ``1:0:0:0`` as a number, in time proportional to the square of its length."""
MOST_LEVELS: Final = 100
"""Levels of a preset: PyYAML takes time in proportion to their square."""


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
        if len(text) > MOST_CHARACTERS:
            raise ValueError(f"it has more than {MOST_CHARACTERS} characters")
        depth = 0
        for event in yaml.parse(text, Loader=yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            has_alias = isinstance(event, yaml.AliasEvent)
            if has_alias or depth > MOST_LEVELS:
                raise ValueError(
                    "it has YAML aliases, which a few words can make endless"
                    if has_alias
                    else "it is nested too deeply"
                )
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"it is not valid YAML ({' '.join(str(error).split())})") from None
    if not isinstance(document, dict) or not isinstance(document.get("settings"), dict):
        raise TypeError("it has no 'settings'")
    return document


def _parse_preset(name: str, document: Mapping[str, Any]) -> Preset:
    settings = {str(key): _setting(str(key), value) for key, value in document["settings"].items()}
    return Preset(name, _text(document, "summary"), settings)


def _text(document: Mapping[str, Any], key: str) -> str:
    text = document.get(key, "")
    if not isinstance(text, str):
        raise TypeError(f"its '{key}' is not a string")
    return text


def _setting(key: str, value: Any) -> Setting:
    head, dot, entry = key.partition(".")
    if head not in FIELDS or head in IDENTITY_KEYS or FIELDS[head].is_map != bool(dot and entry):
        raise ValueError(f"no preset sets '{key}'")
    if not isinstance(value, dict) or "value" not in value:
        raise TypeError(f"'{key}' has no 'value'")
    return Setting(value["value"], _text(value, "reason"), _text(value, "source"))
