"""Parsers of single values: from the text of a flag, a file or JSON to a domain value, or a BadValue."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar

from kubectl_ddp.errors import suggest_close_match
from kubectl_ddp.values.quantity import BadValue

Raw: TypeAlias = "str | int | float | bool | list[Raw] | Mapping[str, Raw] | None"
"""Values of flags (text), job files (text, lists, maps) and JSON."""

T = TypeVar("T")

Schema: TypeAlias = "Mapping[str, Any]"
"""JSON schema of a value."""
TEXT: Final[Schema] = {"type": ["string", "number", "boolean"]}
"""Any text; a YAML file may hold it without quotes, also where YAML reads a number or a boolean."""
UNQUOTED: Final = {"number": "0.5", "integer": "1", "boolean": "true"}
"""Type of an unquoted scalar → a sample of its text."""

INTEGER_PATTERN: Final = r"^-?\d{1,10}$"
"""Pattern of the text of an integer."""
LABEL: Final = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
SUBDOMAIN: Final = rf"{LABEL}(\.{LABEL})*"
"""Pattern of DNS-1123 names of Secrets, claims and classes."""
QUALIFIED: Final = rf"({SUBDOMAIN}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
"""Pattern of keys of labels and taints."""
LABEL_VALUE: Final = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"


class Egress(StrEnum):
    """Allowed egress of a job's pods."""

    OPEN = "open"
    """The cluster, and all IPv4 addresses but a cloud's metadata service: data is in object stores, hubs and file
    servers whose addresses cannot be listed here.
    """
    CLOSED = "closed"
    """Only pods of the same job, and DNS."""
    UNRESTRICTED = "unrestricted"
    """All destinations."""


class Effect(StrEnum):
    """Effect of a taint, in Kubernetes' terms."""

    NO_SCHEDULE = "NoSchedule"
    PREFER_NO_SCHEDULE = "PreferNoSchedule"
    NO_EXECUTE = "NoExecute"


@dataclass(frozen=True, slots=True)
class Toleration:
    """Tolerated taint; any value or effect if they are empty."""

    key: str
    value: str = ""
    effect: Effect | None = None

    PATTERN = rf"(?P<key>{QUALIFIED})(=(?P<value>{LABEL_VALUE}))?(:(?P<effect>\w+))?"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse kubectl's notation of taints, ``KEY[=VALUE][:EFFECT]``. Raises BadValue."""
        match = re.fullmatch(cls.PATTERN, text)
        if match is None or match["effect"] not in {None, *Effect}:
            raise BadValue(
                f"'{text}' is not a taint",
                hint=f"Write KEY, KEY=VALUE or KEY=VALUE:EFFECT, EFFECT one of {', '.join(Effect)}.",
            )
        return cls(match["key"], match["value"] or "", Effect(match["effect"]) if match["effect"] else None)

    def __str__(self) -> str:
        return f"{self.key}{f'={self.value}' if self.value else ''}{f':{self.effect}' if self.effect else ''}"


@dataclass(frozen=True, slots=True)
class SecretKey:
    """One entry of a Secret."""

    secret: str
    key: str

    PATTERN = rf"({SUBDOMAIN}):([-._A-Za-z0-9]+)"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``SECRET:KEY``. Raises BadValue."""
        match = re.fullmatch(cls.PATTERN, text)
        if match is None:
            raise BadValue(f"'{text}' names no entry of a Secret", hint="Write it as 'SECRET:KEY', as in 'hub:token'.")
        secret, _, key = text.partition(":")
        return cls(secret, key)

    def __str__(self) -> str:
        return f"{self.secret}:{self.key}"


@dataclass(frozen=True, slots=True)
class EnvSource:
    """A Secret or ConfigMap whose entries all become environment variables."""

    kind: str
    """``secret`` or ``configmap``."""
    name: str

    PATTERN = rf"(secret|configmap)/({SUBDOMAIN})"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse ``secret/NAME`` or ``configmap/NAME``. Raises BadValue."""
        match = re.fullmatch(cls.PATTERN, text)
        if match is None:
            raise BadValue(f"'{text}' names no source of variables", hint="Write 'secret/NAME' or 'configmap/NAME'.")
        return cls(match[1], match[2])

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"


def text_schema(pattern: str) -> Schema:
    """Return the schema of a text with a pattern; a type besides text is allowed where the pattern matches its text.

    >>> text_schema("[0-9]+")
    {'type': ['string', 'integer'], 'pattern': '^([0-9]+)$'}
    """
    kinds = [kind for kind, sample in UNQUOTED.items() if re.fullmatch(pattern, sample)]
    if "number" in kinds:
        kinds.remove("integer")  # every integer is a number
    return {"type": ["string", *kinds], "pattern": f"^({pattern.replace('(?P<', '(?<')})$"}


def text(raw: Raw) -> str:
    """Return a scalar as one line of text."""
    if isinstance(raw, bool):
        return "true" if raw else "false"
    if isinstance(raw, (str, int, float)):
        return _clean(str(raw))
    raise BadValue(f"'{raw}' is not one value", hint="Write a single word or number.")


def parse_switch(raw: Raw) -> bool:
    """Return the value of ``true`` or ``false``."""
    word = text(raw)
    if word not in {"true", "false"}:
        raise BadValue(f"'{word}' is neither true nor false", hint="Write one of them.")
    return word == "true"


def _clean(word: str) -> str:
    if "\0" in word:
        raise BadValue(f"{word!r} contains a NUL character", hint="Remove it; arguments cannot contain it.")
    try:
        word.encode("utf-8")
    except UnicodeEncodeError:
        raise BadValue(f"{word!r} is not UTF-8 text", hint="Write it in UTF-8.") from None
    return word


def text_list(raw: Raw) -> tuple[str, ...]:
    """Return a list of words."""
    if not isinstance(raw, (list, tuple)):
        raise BadValue(f"'{raw}' is not a list", hint="Write it as a list, as in '[a, b]'.")
    return tuple(text(item) for item in raw)


def parse_command(raw: Raw) -> tuple[str, ...]:
    """Return a command from a list of words, or from one line split as by a shell; not empty."""
    try:
        parts = tuple(shlex.split(raw)) if isinstance(raw, str) else text_list(raw)
    except ValueError as error:
        raise BadValue(f"'{raw}' cannot be split into words: {error}", hint="Close the quotation.") from None
    if not parts or not parts[0]:
        raise BadValue("the command is empty", hint="Name the program, as in 'python train.py'.")
    if parts[0].startswith("-"):
        raise BadValue(f"'{parts[0]}' is not a program", hint="Name the program first, as in 'python train.py'.")
    return tuple(_clean(part) for part in parts)


@dataclass(frozen=True, slots=True)
class ChoiceParser(Generic[T]):
    """Parser for one of a fixed set of words."""

    kind: Callable[[str], T]
    members: tuple[str, ...]

    def __call__(self, raw: Raw) -> T:
        word = text(raw)
        if word not in self.members:
            raise BadValue(
                f"'{word}' is not one of {', '.join(self.members)}", hint=suggest_close_match(word, self.members)
            )
        return self.kind(word)

    @property
    def schema(self) -> Schema:
        """JSON schema of the value."""
        return {"enum": list(self.members)}


@dataclass(frozen=True, slots=True)
class IntRange:
    """Parser for an integer from ``least`` to ``most``."""

    least: int
    most: int
    hint: str = ""

    def __call__(self, raw: Raw) -> int:
        word = text(raw)
        if not re.fullmatch(r"-?\d{1,10}", word) or not self.least <= int(word) <= self.most:
            raise BadValue(f"'{word}' is not an integer from {self.least} to {self.most}", hint=self.hint)
        return int(word)

    @property
    def schema(self) -> Schema:
        """JSON schema of the value."""
        return {"type": ["integer", "string"], "minimum": self.least, "maximum": self.most, "pattern": INTEGER_PATTERN}


class ProcessCount(IntRange):
    """Parser for the processes per node; torchrun's words for automatic counts are rejected."""

    def __call__(self, raw: Raw) -> int:
        word = text(raw)
        if word in {"auto", "gpu", "cpu", "xpu"}:
            raise BadValue(
                f"'{word}' is resolved on each node when it starts, so the world size is unknown before",
                hint="Give the number of processes; with gpus set, the default is one per GPU.",
            )
        return IntRange.__call__(self, word)


@dataclass(frozen=True, slots=True)
class Matching:
    """Parser for text that matches a pattern."""

    pattern: str
    what: str
    hint: str

    def __call__(self, raw: Raw) -> str:
        word = text(raw)
        if not re.fullmatch(self.pattern, word):
            raise BadValue(f"'{word}' is {self.what}", hint=self.hint)
        return word

    @property
    def schema(self) -> Schema:
        """JSON schema of the value."""
        return text_schema(self.pattern)


@dataclass(frozen=True, slots=True)
class Parsed(Generic[T]):
    """Parser for a value type that reads text."""

    parse: Callable[[str], T]
    schema: Schema

    def __call__(self, raw: Raw) -> T:
        return self.parse(text(raw))


@dataclass(frozen=True, slots=True)
class ListOf(Generic[T]):
    """Parser for a list of a value type that reads text."""

    parse: Callable[[str], T]
    items: Schema
    least: int = 0

    def __call__(self, raw: Raw) -> tuple[T, ...]:
        found = tuple(self.parse(item) for item in text_list(raw))
        if len(found) < self.least:
            raise BadValue("the list is empty", hint="Leave it out for the default, or add an entry.")
        return found

    @property
    def schema(self) -> Schema:
        """JSON schema of the value."""
        return {"type": "array", "items": self.items} | ({"minItems": self.least} if self.least else {})


@dataclass(frozen=True, slots=True)
class MapOf(Generic[T]):
    """Parser for a map whose keys match a pattern."""

    key_pattern: str
    what: str
    parse: Callable[[Raw], T]
    values: Schema

    def __call__(self, raw: Raw) -> dict[str, T]:
        if not isinstance(raw, Mapping):
            raise BadValue(f"'{raw}' is not a map", hint="Write one 'key: value' per line.")
        for key in raw:
            if not re.fullmatch(self.key_pattern, key):
                raise BadValue(f"'{key}' is not a valid {self.what}")
        return {key: self.parse(value) for key, value in raw.items()}

    @property
    def schema(self) -> Schema:
        """JSON schema of the value."""
        keys = {"pattern": f"^({self.key_pattern})$"}
        return {"type": "object", "propertyNames": keys, "additionalProperties": self.values}
