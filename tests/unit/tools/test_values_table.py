"""The table of values in a chart's README, from values.yaml and its schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.docs.values_table import BEGIN, END, rows, updated

VALUES = """\
# A comment about the file.
# -- What is the first thing,
# in two lines.
first: 1
nested:
  # not described by two dashes
  plain: a
  # -- A list of things.
  items:
    - name: a
# -- A map | of things.
map: {}
"""
SCHEMA: dict[str, Any] = {
    "definitions": {"name": {"type": "string", "description": "A name."}},
    "properties": {
        "first": {"type": "integer", "minimum": 1, "maximum": 9},
        "nested": {
            "properties": {
                "plain": {"enum": ["a", True]},
                "items": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "properties": {
                            "name": {"allOf": [{"$ref": "#/definitions/name"}], "description": "Its own name."},
                            "silent": {"$ref": "#/definitions/name"},
                            "more": {
                                "type": "object",
                                "description": "Further.",
                                "properties": {"deep": {"type": "boolean", "description": "Within."}},
                            },
                        },
                    },
                },
            }
        },
        "map": {
            "type": "object",
            "additionalProperties": {
                "properties": {"size": {"type": ["integer", "string"], "description": "Its size."}}
            },
        },
    },
}


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    (tmp_path / "values.yaml").write_text(VALUES)
    (tmp_path / "values.schema.json").write_text(json.dumps(SCHEMA))
    return tmp_path


def test_what_items_and_entries_hold_is_told_from_the_schema(chart: Path) -> None:
    found = {row.key: (row.default, row.may_be, row.description) for row in rows(chart)}
    assert found == {
        "first": ("1", "1 to 9", "What is the first thing, in two lines."),
        "nested.items": ('[{"name": "a"}]', "list of maps", "A list of things."),
        "nested.items[].name": ("", "text", "Its own name."),
        "nested.items[].more": ("", "map", "Further."),
        "nested.items[].more.deep": ("", "`true`, `false`", "Within."),
        "map": ("{}", "map", "A map | of things."),
        "map.*.size": ("", "whole number or text", "Its size."),
    }


def test_the_table_stands_between_its_markers_and_nothing_else_changes(chart: Path) -> None:
    (chart / "README.md").write_text(f"# Mine\n{BEGIN}\nold\n{END}\nThe end.\n")
    head, *lines, tail = updated(chart).splitlines()
    assert (head, tail) == ("# Mine", "The end.")
    assert "| `map` | `{}` | map | A map \\| of things. |" in lines
    assert "old" not in lines
    (chart / "README.md").write_text(updated(chart))
    assert (chart / "README.md").read_text() == updated(chart)


def test_a_key_that_the_schema_does_not_know_and_a_readme_without_a_place_are_errors(chart: Path) -> None:
    (chart / "README.md").write_text("# Mine\n")
    with pytest.raises(ValueError, match="has no place for the table: write the lines"):
        updated(chart)
    (chart / "values.yaml").write_text("# -- Unknown.\nother: 1\n")
    with pytest.raises(KeyError, match="other"):
        rows(chart)
