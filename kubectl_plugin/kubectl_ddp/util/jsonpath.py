"""kubectl's JSONPath, the common subset: ``{.items[*].name}``, ``{range}``, filters and quoted text.

:func:`parse_template` reads the template of ``-o jsonpath``, :func:`parse_path` a single path, as in ``--sort-by``, and
:func:`columns_table` those of ``-o custom-columns``. What is not supported, such as recursive descent, is refused when
it is parsed.

Source: https://kubernetes.io/docs/reference/kubectl/jsonpath/
"""

from __future__ import annotations

import json
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from kubectl_ddp.errors import UsageError, suggest_known
from kubectl_ddp.util.text_table import Table

Step = Callable[[Any], Iterable[Any]]
"""Function that returns the values one step below a value."""

_HINT: Final = "Write it as '{.items[*].name}', or '{range .items[*]}{.name}{\"\\n\"}{end}'."
_NAME: Final = re.compile(r"\.?((?:[^\s.\[\](){}\\'\",=<>!@?*$|]|\\.)+)")
_QUOTED: Final = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_KEY: Final = re.compile(rf"\[({_QUOTED})\]")
_INDEX: Final = re.compile(r"\[(-?\d+)\]")
_SLICE: Final = re.compile(r"\[(-?\d*):(-?\d*)(?::(\d+))?\]")
_ALL: Final = re.compile(r"\.?\[\*\]|\.\*")
_FILTER: Final = re.compile(rf"\[\?\(\s*@((?:{_QUOTED}|[^'\"=<>!)\s])*)\s*(?:(==|!=|<=|>=|<|>)\s*([^)]*?)\s*)?\)\]")
_ACTION: Final = re.compile(rf"\{{((?:{_QUOTED}|[^'\"{{}}])*)\}}")
_ESCAPES: Final[Mapping[str, str]] = {"n": "\n", "t": "\t", "r": "\r"}
_OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, slots=True)
class JsonPath:
    """One path, such as ``.items[*].name``."""

    steps: tuple[Step, ...]
    is_absolute: bool = False
    """True if it begins with ``$``: it starts at the document, also inside a range."""

    def find(self, value: Any) -> list[Any]:
        """Return the values at this path. Raises UsageError for a field that an object with a kind does not have."""
        values = [value]
        for step in self.steps:
            values = [found for value in values for found in step(value)]
        return values


@dataclass(frozen=True, slots=True)
class _Range:
    path: JsonPath
    parts: tuple[_Part, ...]


_Part = str | JsonPath | _Range


@dataclass(frozen=True, slots=True)
class Template:
    """Text with paths in braces."""

    parts: tuple[_Part, ...]

    def render(self, document: Any) -> str:
        """Return the text with the values of a document in place of the paths."""
        return "".join(_render(self.parts, document, document))


def _render(parts: Iterable[_Part], value: Any, document: Any) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part
        elif isinstance(part, JsonPath):
            yield " ".join(map(format_value, part.find(document if part.is_absolute else value)))
        else:
            for item in part.path.find(document if part.path.is_absolute else value):
                yield from _render(part.parts, item, document)


def format_value(value: Any) -> str:
    """Format a value as kubectl does: text without quotes, objects and lists as JSON.

    >>> [format_value(each) for each in ("a", 3, 0.5, True, None, [1, {"b": 2}])]
    ['a', '3', '0.5', 'true', '', '[1,{"b":2}]']
    """
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))


def parse_template(text: str) -> Template:
    """Parse a template. Raises UsageError.

    >>> parse_template("{range .items[*]}{.name}={.step} {end}").render({"items": [{"name": "a", "step": 1}]})
    'a=1 '
    """
    stack: list[tuple[JsonPath | None, list[_Part]]] = [(None, [])]
    end, has_action = 0, False
    for match in _ACTION.finditer(text):
        has_action = True
        stack[-1][1].append(_plain(text[end : match.start()], text))
        end = match.end()
        action = match[1].strip()
        if action == "end":
            path, parts = stack.pop()
            if path is None:
                raise _usage_error(text, "has '{end}' without '{range ...}'")
            stack[-1][1].append(_Range(path, tuple(parts)))
        elif action.split(maxsplit=1)[:1] == ["range"]:
            stack.append((_path(action.removeprefix("range").strip(), text), []))
        else:
            stack[-1][1].append(_text_or_path(action, text))
    stack[-1][1].append(_plain(text[end:], text))
    if len(stack) > 1:
        raise _usage_error(text, "has '{range ...}' without '{end}'")
    if not has_action:
        raise _usage_error(text, "has no path in braces")
    return Template(tuple(stack[0][1]))


def _plain(part: str, text: str) -> str:
    """Return text between two actions. Raises UsageError if it has a brace that none has."""
    if "{" in part or "}" in part:
        raise _usage_error(text, f"has a brace or a quote without its counterpart at '{part.strip()}'")
    return part


def _text_or_path(action: str, text: str) -> str | JsonPath:
    if re.fullmatch(_QUOTED, action):
        return _unquote(action)
    return _path(action, text)


def parse_path(text: str) -> JsonPath:
    """Parse a path; braces and the first dot may be left out, as in kubectl. Raises UsageError.

    >>> [parse_path(text).find({"a": [{"b": 1}, {"b": 2}]}) for text in ("{.a[*].b}", "a[-1].b", ".a[?(@.b>1)].b")]
    [[1, 2], [2], [2]]
    """
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1].strip()
    return _path(inner, text)


def _path(path: str, text: str) -> JsonPath:
    is_absolute = path.startswith("$")
    rest = path[1:] if path[:1] in {"$", "@"} else path
    steps: list[Step] = []
    at = 0
    if rest in {"", "."}:
        if path:
            return JsonPath((), is_absolute)
        raise _usage_error(text, "has an empty path")
    while at < len(rest):
        step, at = _step(rest, at, text)
        steps.append(step)
    return JsonPath(tuple(steps), is_absolute)


def _step(path: str, at: int, text: str) -> tuple[Step, int]:
    """Return the step at a position of a path, and the position after it."""
    if match := _ALL.match(path, at):
        return _children, match.end()
    if match := _KEY.match(path, at):
        return _field(_unquote(match[1])), match.end()
    if match := _INDEX.match(path, at):
        return _item(int(match[1])), match.end()
    if (match := _SLICE.match(path, at)) and match[3] != "0":
        return _items(slice(*(int(number) if number else None for number in match.groups()))), match.end()
    if match := _FILTER.match(path, at):
        return _filter(_path(f"@{match[1]}", text), match[2], match[3], text), match.end()
    if (match := _NAME.match(path, at)) and (at == 0 or path[at] == "."):
        return _field(re.sub(r"\\(.)", r"\1", match[1])), match.end()
    raise _usage_error(text, f"has '{path[at:]}', which is not supported")


_MEANT: Final = {"status": "state"}
"""Field of Kubernetes' own objects → ours."""


def _field(name: str) -> Step:
    def step(value: Any) -> Iterator[Any]:
        if not isinstance(value, Mapping):
            return
        if name in value:
            yield value[name]
        elif "apiVersion" in value:  # its fields are fixed, so this one is a mistake, and no value that is not there
            raise UsageError(
                f"{value.get('kind')} has no field '{name}'.", hint=suggest_known(_MEANT.get(name, name), value)
            )

    return step


def _children(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _items(part: slice) -> Step:
    return lambda value: value[part] if isinstance(value, list) else ()


def _item(index: int) -> Step:
    return _items(slice(index, index + 1 or None))


def _filter(path: JsonPath, sign: str | None, literal: str | None, text: str) -> Step:
    wanted = _literal(literal, text) if literal is not None else None

    def fits(value: Any) -> bool:
        found = path.find(value)
        if sign is None:
            return bool(found)
        return any(_compare(sign, item, wanted) for item in found)

    return lambda value: [item for item in _children(value) if fits(item)]


def _compare(sign: str, value: Any, wanted: Any) -> bool:
    try:
        return _OPERATORS[sign](value, wanted)
    except TypeError:  # a number is neither more nor less than a text
        return False


def _literal(literal: str, text: str) -> Any:
    if re.fullmatch(_QUOTED, literal):
        return _unquote(literal)
    try:
        return json.loads(literal)
    except ValueError:
        raise _usage_error(text, f"compares with '{literal}', which is neither a number nor a text in quotes") from None


def _unquote(quoted: str) -> str:
    return re.sub(r"\\(.)", lambda match: _ESCAPES.get(match[1], match[1]), quoted[1:-1])


def _usage_error(text: str, problem: str) -> UsageError:
    return UsageError(f"JSONPath '{text}' {problem}.", hint=_HINT)


def sort_by_path(values: Sequence[Any], path: JsonPath) -> list[int]:
    """Return the indexes of documents in the order of their values at a path: none first, numbers, then text."""

    def order(index: int) -> tuple[int, float, str]:
        value = next(iter(path.find(values[index])), None)
        if value is None:
            return 0, 0.0, ""
        if isinstance(value, int | float):
            return 1, float(value), ""
        return 2, 0.0, format_value(value)

    return sorted(range(len(values)), key=order)


MISSING: Final = "<none>"
"""Text of a value that is missing or null, as in kubectl."""


def parse_columns(text: str) -> list[tuple[str, JsonPath]]:
    """Return title and path of each column. Raises UsageError.

    >>> [title for title, _ in parse_columns("NAME:.name,LAST:.ranks[-1].step")]
    ['NAME', 'LAST']
    """
    columns = []
    for part in re.split(r",(?![^\[]*\])", text):
        title, colon, path = part.partition(":")
        if not title or not colon or not path:
            raise UsageError(f"-o custom-columns: '{part}' is not TITLE:PATH.", hint="Write 'NAME:.name,STEP:.step'.")
        columns.append((title, parse_path(path)))
    return columns


def columns_table(document: Mapping[str, Any], text: str) -> Table:
    """Return a table with a row for each item of a list, or one row for another document. Raises UsageError."""
    columns = parse_columns(text)
    rows = [[_text(path.find(item)) for _, path in columns] for item in document.get("items", [document])]
    return Table.from_text([title for title, _ in columns], rows)


def _text(values: Sequence[Any]) -> str:
    return ",".join(MISSING if value is None else format_value(value) for value in values) or MISSING
