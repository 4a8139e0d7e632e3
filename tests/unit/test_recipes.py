"""Files that CONTRIBUTING.md and the recipes at the heads of modules name exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
BASES: Final = [
    ROOT / base for base in ("", "trainer/ddp_trainer", "kubectl_plugin", "trainer", "kubectl_plugin/kubectl_ddp")
]
CONTRIBUTING: Final = (ROOT / "CONTRIBUTING.md").read_text()
IN_TABLE: Final = [row for row in CONTRIBUTING.splitlines() if re.match(r"\| .*`[\w/]+\.py`", row)]
RECIPES: Final = re.findall(r"`([\w/]+\.py)`(?:, `([\w/]+\.py)`)? \(recipes?\)", CONTRIBUTING)


def find_file(name: str, beside: Path | None = None) -> Path | None:
    """The file that a name means; one without a folder may lie anywhere."""
    for base in [*([beside] if beside else []), *BASES]:
        if (base / name).is_file():
            return base / name
    return None if "/" in name else next(ROOT.glob(f"[tk]*/**/{name}"), None)


@pytest.mark.parametrize("row", IN_TABLE, ids=lambda row: row.split("|")[1].strip())
def test_the_files_of_a_row_exist(row: str) -> None:
    first, *others = re.findall(r"`([\w/]+\.(?:py|md))`", row)
    found = find_file(first)
    assert found
    assert [name for name in others if not find_file(name, found.parent)] == []


@pytest.mark.parametrize("name", [name for pair in RECIPES for name in pair if name])
def test_a_recipe_names_files_that_exist(name: str) -> None:
    path = find_file(name)
    assert path
    recipe = ast.get_docstring(ast.parse(path.read_text())) or ""
    assert "How to " in recipe
    named = {text for text in re.findall(r"``([\w/.]+\.(?:py|md|json))``", recipe) if "NAME" not in text}
    assert [text for text in sorted(named) if not find_file(text, path.parent)] == []


def test_there_is_a_recipe_for_each_common_change() -> None:
    assert len([name for pair in RECIPES for name in pair if name]) >= 9
