"""Examples in docstrings hold, and references in docstrings name something that exists."""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("trainer/ddp_trainer", "trainer/ddp_collectives", "kubectl_plugin/kubectl_ddp", "bench", "tools")
SOURCES: Final = {
    ".".join(path.relative_to((ROOT / package).parent).with_suffix("").parts): path
    for package in PACKAGES
    for path in sorted((ROOT / package).rglob("*.py"))
}
"""Name of a module → its file."""
REFERENCE: Final = re.compile(r":(func|class|meth|attr|data|mod):`~?([\w.]+)`")
OURS: Final = ("ddp_trainer.", "ddp_collectives.", "kubectl_ddp.", "bench.", "tools.")


@pytest.mark.parametrize("name", [name for name, path in SOURCES.items() if ">>>" in path.read_text()])
def test_the_examples_of_a_module_hold(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert (outcome.failed, outcome.attempted > 0) == (0, True)


def test_every_reference_names_what_is_defined() -> None:
    functions, others = set(), {part for name in SOURCES for part in name.split(".")}
    for path in SOURCES.values():
        for node in ast.walk(ast.parse(path.read_text())):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    functions.add(name)
                case ast.ClassDef(name=name) | ast.arg(arg=name):
                    others.add(name)
                case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                    others.add(name)
    lost = {
        f"{module}: {reference}"
        for module, path in SOURCES.items()
        for kind, reference in REFERENCE.findall(path.read_text())
        if "." not in reference or reference.startswith(OURS)
        if reference.split(".")[-1] not in (functions if kind in {"func", "meth"} else functions | others)
    }
    assert lost == set()
