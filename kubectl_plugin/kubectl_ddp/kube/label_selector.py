"""Label selectors: the text that ``-l`` takes, and the labels that they select."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kubectl_ddp.errors import UsageError

_SET: Final = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")
_EQUALITY: Final = re.compile(r"([^\s=!]+)\s*(==|=|!=)\s*([^\s=!]*)")
_EXISTENCE: Final = re.compile(r"(!?)\s*([^\s=!()]+)")
_OPERATORS: Final[Mapping[str, str]] = {"in": "In", "notin": "NotIn", "=": "In", "==": "In", "!=": "NotIn"}


def parse_label_selector(text: str) -> dict[str, Any]:
    """Return a LabelSelector for the text of one. Raises UsageError.

    >>> parse_label_selector("a=b,c notin (d, e),!f")["matchExpressions"][1:]
    [{'key': 'c', 'operator': 'NotIn', 'values': ['d', 'e']}, {'key': 'f', 'operator': 'DoesNotExist'}]
    """
    return {"matchExpressions": [*_expressions(text)]}


def _expressions(text: str) -> Iterator[dict[str, Any]]:
    for part in re.split(r",(?![^()]*\))", text):
        term = part.strip()
        if match := _SET.fullmatch(term):
            values = [value.strip() for value in match[3].split(",")]
            yield {"key": match[1], "operator": _OPERATORS[match[2]], "values": values}
        elif match := _EQUALITY.fullmatch(term):
            yield {"key": match[1], "operator": _OPERATORS[match[2]], "values": [match[3]]}
        elif match := _EXISTENCE.fullmatch(term):
            yield {"key": match[2], "operator": "DoesNotExist" if match[1] else "Exists"}
        else:
            raise UsageError(
                f"--selector: '{term}' is not a requirement on labels.",
                hint="Write 'KEY=VALUE', 'KEY!=VALUE', 'KEY in (A,B)', 'KEY' or '!KEY', separated by commas.",
            )


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return True if a LabelSelector selects objects with these labels; an empty selector selects all.

    >>> selects({"matchLabels": {"app": "a"}}, {"app": "a", "x": "y"}), selects({}, {}), selects(None, {})
    (True, True, False)
    """
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    has_all = all(labels.get(key) == value for key, value in wanted.items())
    return has_all and all(_holds(each, labels) for each in selector.get("matchExpressions") or ())


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or ()
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    return False
