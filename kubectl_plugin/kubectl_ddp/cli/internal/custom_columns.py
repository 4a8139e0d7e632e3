"""Tables with the columns of ``-o custom-columns=NAME:.name,STEP:.step``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kubectl_ddp.errors import UsageError
from kubectl_ddp.util.jsonpath import JsonPath, format_value, parse_path
from kubectl_ddp.util.text_table import Table

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
    return Table.of_texts([title for title, _ in columns], rows)


def _text(values: Sequence[Any]) -> str:
    return ",".join(MISSING if value is None else format_value(value) for value in values) or MISSING
